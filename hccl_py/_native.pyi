"""The native engine of hccl_py."""

from collections.abc import Sequence


def isa() -> str:
    """The instruction set whose kernels are used here."""

def slot_begin(count: int, slots: int, k: int) -> int:
    """
    First element of slot k, of a block of `count` elements in `slots` slots.
    """

def buffer(data: object) -> tuple[int, int, int, bool, bool, bool] | None:
    """
    (address, elements, element type or -1, contiguous, read-only, in host memory) of an array; None if it is none.
    """

def fold(op: int, dtype: int, out: int, sources: Sequence[int], count: int, scale: float = 1.0, isa: str = '') -> None:
    """
    Folds raw sources at the given addresses into `out`: what the engine does with arrived data.
    """

class Segment:
    """Memory that was made shared; dropping it makes it private again."""

class Hub:
    """
    Where the ranks of one process meet: the reference transport `loopback`.
    """

    def __init__(self, world: int, slot_bytes: int = 4096, channels: int = 2) -> None: ...

class Work:
    """An operation that was started."""

    def done(self) -> bool:
        """True once it is over, well or not."""

    def failed(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits; raises what went wrong; False if the time passed first."""

    @property
    def source(self) -> int:
        """The rank that sent, of a receive that is done."""

    @property
    def tag(self) -> int:
        """The tag of the message, of a receive that is done."""

    @property
    def num_bytes(self) -> int:
        """How long the message is, of a receive that is done."""

    @property
    def ended_s(self) -> float:
        """
        When it was done, on the clock of time.perf_counter(); 0: not yet, or failed.
        """

    @property
    def sequence(self) -> int: ...

class Group:
    """One rank's membership in a group."""

    def __init__(self, rank: int, world: int, *, hub: Hub | None = None, use_shm: bool = True, use_tcp: bool = True, host_id: str = '', usable_cpus: int = 1, spins: int = -1, segment_bytes: int = 65536, timeout_s: float = 600.0, strict: bool = False, shm_ring_bytes: int = 524288, shm_slot_bytes: int = 65536, tcp_interfaces: str = '', tcp_port_range: tuple[int, int] = (0, 0), tcp_connections: int = 2, tcp_family: str = 'auto', shm_shared_from_bytes: int = 8192, shm_private_from_bytes: int = 32768, tcp_congestion: str = '') -> None: ...

    def run(self, collective: int, op: int, dtype: int, root: int, input: int, output: int, count: int) -> bool:
        """Runs a collective; False if it has no plan table yet."""

    def run_arrays(self, collective: int, op: int, root: int, input: object | None, output: object | None, input_blocks: int, output_blocks: int) -> bool:
        """
        Runs a collective on plain arrays (0 blocks: this rank has none there); False: take the long way.
        """

    def send_array(self, data: object, dst: int, tag: int) -> bool:
        """Sends a plain array; False: take the long way."""

    def recv_array(self, data: object, src: int, tag: int) -> int:
        """
        Receives into a plain array; returns the source, or -1: take the long way.
        """

    def recv_some(self, data: object, src: int, tag: int, wild: int) -> tuple[int, int, int] | None:
        """
        Receives at most a plain array full, from a tag of which the bits of `wild` may be anything; source, tag and bytes, or None: take the long way.
        """

    def exchange_arrays(self, send_data: object, dst: int, recv_data: object, src: int, tag: int) -> int:
        """
        Sends one plain array and receives another; returns the source, or -1: take the long way.
        """

    def prepare(self, collective: int, op: int, dtype: int, root: int, input: int, output: int, count: int, keep: object, explain: object) -> Prepared | None:
        """
        A call to be run again and again; None if it has no plan table yet. `explain` may replace a DesyncError.
        """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def local_ranks(self) -> list[int]:
        """The ranks that share memory with this one, itself included."""

    @property
    def warning(self) -> str:
        """What the user should know of the connections; usually empty."""

    @property
    def channels(self) -> int:
        """Parallel channels to each peer that plans may use."""

    @property
    def slot_bytes(self) -> int:
        """How large a payload may be to go by the board of this host."""

    @property
    def timeout_s(self) -> float: ...

    def pace(self, peer: int, channel: int, most_Bps: float) -> bool:
        """
        Sends to a peer by one channel of plans at most so fast (0: no limit); False where the transport cannot.
        """

    def trace(self) -> list[tuple[int, int, int, int, int, int, int, int, int]]:
        """
        Of each TCP connection (peer, connection, acked bytes, busy us, us the peer had no room, us our buffer was full, resent bytes, latest bytes/s, least round trip us), as the kernel counted them so far.
        """

    def transport_to(self, peer: int) -> str: ...

    def address(self) -> bytes: ...

    def join(self, addresses: Sequence[bytes], timeout_s: float) -> bytes:
        """
        Shares memory with this host's ranks; returns the report for connect().
        """

    def connect(self, reports: Sequence[bytes], timeout_s: float) -> None: ...

    def load_program(self, program: bytes) -> int: ...

    def set_table(self, collective: int, root: int, uneven: bool, upto_bytes: Sequence[int], programs: Sequence[int]) -> None: ...

    def start(self, collective: int, op: int, dtype: int, root: int, input: int, output: int, count: int, counts: tuple[Sequence[int], Sequence[int]] | None = None) -> Work | None:
        """Starts one; None if it has no plan table yet."""

    def start_send(self, memory: int, num_bytes: int, dst: int, tag: int) -> Work: ...

    def start_recv(self, memory: int, num_bytes: int, src: int, tag: int, wild: int = 0, shorter: bool = False) -> Work: ...

    def allocate(self, num_bytes: int) -> object:
        """
        New bytes that the ranks of this host can reach; they live as long as the array.
        """

    def adopt(self, memory: int, num_bytes: int) -> Segment:
        """
        Makes ordinary memory reachable in the same way, until the segment is dropped.
        """

    @property
    def no_pulls(self) -> str:
        """
        Why the private memory of this host's ranks cannot be read; empty if it can.
        """

    @property
    def traffic(self) -> tuple[int, int, int]:
        """
        (bytes read, bytes written, of these into rings or staging) by this rank in its last large collective.
        """

    def post_site(self, sequence: int, text: str) -> None: ...

    def peer_site(self, peer: int, sequence: int, timeout_s: float) -> str: ...

    def abort(self, why: str) -> None: ...

    def close(self) -> None: ...

class Prepared:
    """
    A collective on given buffers, ready to be run again and again. It keeps the buffers alive.
    """

    def run(self) -> None:
        """
        Runs it; returns when this rank's part is done. Raises what the plain call raises.
        """

    def start(self) -> None:
        """
        Starts it and returns at once; the buffers must be left alone until wait() or done().
        """

    def wait(self, timeout_s: float | None = None) -> bool:
        """
        Waits for what start() began; raises what went wrong; False if the time passed first.
        """

    def done(self) -> bool:
        """
        True if nothing that start() began is under way. Well or not: wait() tells.
        """

def kernel_sources() -> dict[str, str]: ...

class DeviceGroup:
    def __init__(self, kind: str, ordinal: int, rank: int, size: int) -> None: ...

    def set_options(self, timeout_s: float, max_blocks: int, small_bytes: int, small_threads: int = 0, large_threads: int = 0, large_blocks: int = 0, takers: int = 0, batches: int = 0, slots: int = 0, carry_bytes: int = 18446744073709551615, carry_aside_bytes: int = 1048576, carry_piece_bytes: int = 0, bulk: bool = True) -> None: ...

    def handle(self) -> bytes: ...

    def map(self, peer: int, handle: bytes) -> None: ...

    def add_kernels(self, key: int, image: bytes) -> None: ...

    def run(self, collective: int, op: int, dtype: int, wire: int, root: int, input: int, output: int, count: int, stream: int, aside: bool = False) -> int:
        """
        Launches a collective; 0, or 1 + the key of the kernels that it needs first.
        """

    def run_parts(self, send: Sequence[int], send_bytes: Sequence[int], recv: Sequence[int], recv_bytes: Sequence[int], message: bool, stream: int) -> int:
        """As run, with an address and a number of bytes for and from each rank."""

    def order(self, before: int, after: int) -> None:
        """Stream `after` waits for what `before` holds now."""

    def check(self) -> None: ...

    def failed(self) -> bool: ...

    def abort(self, lost: int, why: str) -> None: ...

    def close(self) -> None: ...

    @property
    def launches(self) -> int: ...

def codec_encode(codec: int, dtype: int, data: int, factor: float, residual: int, out: int, rows: int, num_rows: int, isa: str = '') -> None:
    """
    Encodes rows (six 64-bit numbers each) of an array; residual: address of the error memory, or 0.
    """

def codec_decode(codec: int, dtype: int, data: int, out: int, rows: int, num_rows: int, add: bool = False, isa: str = '') -> None:
    """
    Stores what the codes of rows stand for, or adds it to an array of float32.
    """

def lossless_encode(words: int, count: int, out: int, room: int, isa: str = '') -> int:
    """Code of words of float32; returns how many bytes were written."""

def lossless_decode(data: int, bytes: int, out: int, count: int, add: bool = False, isa: str = '') -> bool:
    """
    Stores the words of a code, or adds them as float32; False if it is no code of so many.
    """

def check_sums(data: int, bytes: int) -> tuple[int, int]:
    """Plain and weighted sum of the 32-bit words."""

def select_top(data: int, count: int, k: int, indices: int) -> None:
    """Indices of the k largest magnitudes, ascending."""

def select_above(data: int, count: int, threshold: float, indices: int, room: int) -> int:
    """
    Indices of magnitudes of at least the threshold, ascending; returns how many were written.
    """

def scatter_add(out: int, count: int, indices: int, values: int, n: int) -> bool:
    """
    out[index] += value, in order; False, and nothing done, if an index is out of bounds.
    """
