"""(model card, devices, request) -> Plan: pure, torch-free, and a contract on memory."""
