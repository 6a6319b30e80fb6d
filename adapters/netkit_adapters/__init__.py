"""The adapters that ship with netkit: one per HTTP stack."""
