"""Call-frame information as tables that the kernel side can search: how to find the caller of any instruction."""
