"""Any GPU that Vulkan, Metal or DirectX 12 reaches, through WGSL and wgpu."""
