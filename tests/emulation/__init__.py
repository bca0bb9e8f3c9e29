"""Run rung on processors that this machine is not: ARM, by qemu's emulation of one program, without root."""
