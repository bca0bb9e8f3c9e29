"""(model card, devices, request) -> Plan: pure, torch-free, and a contract on memory."""

from rung.planning.request import Request
from rung.planning.solve import solve

__all__ = ["Request", "solve"]
