import pytest


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    """Two thread pools on two cores get in each other's way: torch's is much slower for it."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
