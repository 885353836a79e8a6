import pytest, time
@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize("hosts", [(0,0,1,1),(0,1,0,1),(0,0,0,1)])
def test_x(nodes, i, hosts):
    t=time.time()
    r = nodes.run("timed", hosts, counts=[1,1000,100003])
    print(f"{time.time()-t:.2f}")
    for x in r: print(x)
