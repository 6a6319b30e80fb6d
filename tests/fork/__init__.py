"""What happens to sessions in a forked child, whatever the parent's threads were in the middle of."""
