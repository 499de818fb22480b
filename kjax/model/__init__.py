"""The descriptors: the paper's section 3."""
