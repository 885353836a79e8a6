"""Messages of buffers as mpi4py has them: Send, Recv, Isend, Irecv, Sendrecv."""

from __future__ import annotations

from typing import Any

from hccl_py.buffers import describe
from hccl_py.mpistyle.constants import ANY_SOURCE, ANY_TAG
from hccl_py.mpistyle.message import array_of
from hccl_py.mpistyle.place import Place, is_nobody, tag_to_receive, tag_to_send
from hccl_py.mpistyle.request import Request, Status, fill, nothing_to_do


class BufferMessages(Place):
    """A receive takes messages that are shorter than its buffer, from any source and with any tag if told to."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send; returns when the buffer may be changed."""
        if not is_nobody(dest):
            self._here.send(array_of(buf, "buf"), self._peer(dest, "dest"), tag_to_send(tag))

    Rsend = Send

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start Send."""
        if is_nobody(dest):
            return nothing_to_do()
        return Request([self._here.isend(array_of(buf, "buf"), self._peer(dest, "dest"), tag_to_send(tag))])

    Irsend = Isend

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receive a message of at most the size of the buffer."""
        if not is_nobody(source):
            array, (number, wild) = array_of(buf, "buf"), tag_to_receive(tag)
            found = self._here.engine.native.recv_some(array, self._peer(source, "source", True), number, wild)
            if found is None:
                self.Irecv(buf, source, tag).Wait(status)
            elif status is not None:
                status.put(*found)
        elif status is not None:
            status.put(source, ANY_TAG, 0)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start Recv."""
        if is_nobody(source):
            return nothing_to_do(lambda status: fill(status, source, ANY_TAG, 0))
        array, (number, wild) = array_of(buf, "buf"), tag_to_receive(tag)
        look = describe(array, "buf", writable=True)
        work = self._here.engine.start_recv(
            look.ptr, look.nbytes, self._peer(source, "source", True), number, keep=array, wild=wild, shorter=True
        )
        return Request([work], lambda status: fill(status, work.source, work.tag, work.num_bytes))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive at once."""
        receiving = self.Irecv(recvbuf, source, recvtag)
        self.Send(sendbuf, dest, sendtag)
        receiving.Wait(status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send what is in the buffer, and receive into it."""
        array = array_of([buf] if not isinstance(buf, (list, tuple)) else buf, "buf")
        sending = self.Isend(array.copy(), dest, sendtag)
        self.Recv(array, source, recvtag, status)
        sending.Wait()
