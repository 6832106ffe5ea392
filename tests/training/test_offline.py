"""Training jobs cannot use the network; they read only prepared files."""

import socket

import pytest
from huggingface_hub import HfApi, constants

from dpsweep.training.job import NetworkRefusedError, refuse_network


def reasons(error: BaseException | None) -> list[type[BaseException]]:
    """Return the types of an error and of its causes."""
    return [] if error is None else [type(error), *reasons(error.__cause__ or error.__context__)]


def test_a_job_cannot_connect_to_the_hub_or_a_machine(monkeypatch):
    """Unix sockets stay possible."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    refuse_network()
    with pytest.raises(NetworkRefusedError, match="reads prepared files only"):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    with pytest.raises(Exception) as refused:
        HfApi(endpoint="http://127.0.0.1:9").model_info("someone/vit", timeout=2)
    assert NetworkRefusedError in reasons(refused.value)
    left, right = socket.socketpair(socket.AF_UNIX)
    left.send(b"x")
    assert right.recv(1) == b"x"
