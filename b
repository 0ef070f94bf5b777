0.10.2 ['jaxlib._jax.ArrayImpl', 'jax.jaxlib._jax.Array', 'builtins.object']
Operand(, shape=(4, 3), strides=(3, 1), dtype='float16', device=None, library='jax', readonly=True) True the host (jax)
ReadOnlyError C (jax) is immutable, as all arrays of JAX are, and is to be written to: leave it out and 
Operand(, shape=(4, 3), strides=(3, 1), dtype='bfloat16', device=None, library='jax', readonly=True) True the host (jax)
ReadOnlyError C (jax) is immutable, as all arrays of JAX are, and is to be written to: leave it out and 
Operand(, shape=(4, 3), strides=(3, 1), dtype='float32', device=None, library='jax', readonly=True) True the host (jax)
ReadOnlyError C (jax) is immutable, as all arrays of JAX are, and is to be written to: leave it out and 
Operand(, shape=(4, 3), strides=(3, 1), dtype='int8', device=None, library='jax', readonly=True) True the host (jax)
ReadOnlyError C (jax) is immutable, as all arrays of JAX are, and is to be written to: leave it out and 
Operand(, shape=(4, 3), strides=(3, 1), dtype='complex64', device=None, library='jax', readonly=True) True the host (jax)
ReadOnlyError C (jax) is immutable, as all arrays of JAX are, and is to be written to: leave it out and 
ArrayError A is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callback, w
ArrayError A is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callback, w
ArrayError A is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callback, w
ScalarError alpha is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callbac
ScalarError alpha is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callbac
ScalarError alpha is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm outside, or by jax.pure_callbac
False ArrayError A is a jax._src.numpy.scalar_types._ScalarMeta; expected an array of NumPy, CuPy, PyTorch or JAX, or anything with DLPack or __cuda_array_interface__
False ArrayError A is a jax.ShapeDtypeStruct; expected an array of NumPy, CuPy, PyTorch or JAX, or anything with DLPack or __cuda_array_interface__
True ShapeError A has shape (); expected a matrix, which has two dimensions: a column is reshape(-1, 1)
True ShapeError A has shape (); expected a matrix, which has two dimensions: a column is reshape(-1, 1)
False ArrayError A is a numpy.dtypes.Float32DType; expected an array of NumPy, CuPy, PyTorch or JAX, or anything with DLPack or __cuda_array_interface__
False ArrayError A is a jax._src.random.prng.PRNGKeyArray; expected an array of NumPy, CuPy, PyTorch or JAX, or anything with DLPack or __cuda_array_interface__: np.as
[[4. 4.]
 [4. 4.]]
