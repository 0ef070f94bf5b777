"""What runs before and behind the kernel that multiplies: packing, and the sum over slices of K."""
