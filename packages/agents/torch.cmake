# The torch that the agents are compiled for. Cache variable:
#
#     RPC_BACKENDS_TORCH     the folder of torch to build for, for example of an unpacked wheel; default: the installed torch.
#                            Nothing of it is run.
#
# Target: rpc_backends::torch, for what links to torch. Variable: RPC_BACKENDS_TORCH_BUILD, the name of the folder for
# the build, for example torch-2.13; torch_builds.py chooses the folder by its name.
include_guard(GLOBAL)

set(RPC_BACKENDS_TORCH "" CACHE PATH "the folder of torch to build for; empty: the installed torch")

if(RPC_BACKENDS_TORCH)
  set(rpc_backends_torch_folder "${RPC_BACKENDS_TORCH}")
else()
  rpc_backends_find_package_folder(rpc_backends_torch_folder torch torch)
endif()

file(STRINGS "${rpc_backends_torch_folder}/version.py" line REGEX "^__version__ = ")
# All releases of a minor version have one C++ interface. A nightly (2.16.0.dev20261101) or a vendor's torch has its own.
if(line MATCHES "'([0-9]+\\.[0-9]+)(\\.[0-9]+)*(\\.post[0-9]+)?(\\+[^']*)?'")
  set(RPC_BACKENDS_TORCH_BUILD "torch-${CMAKE_MATCH_1}")
else()
  string(REGEX MATCH "'([^']+)'" version "${line}")
  set(RPC_BACKENDS_TORCH_BUILD "torch-${CMAKE_MATCH_1}")
endif()

# torch's layout of std::string. Nothing that passes between the agents and a transport depends on it.
set(abi 1)
file(STRINGS "${rpc_backends_torch_folder}/share/cmake/Torch/TorchConfig.cmake" line REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(line)
  set(abi 0)
  string(APPEND RPC_BACKENDS_TORCH_BUILD "-old-strings")
endif()

add_library(rpc_backends_torch INTERFACE)
add_library(rpc_backends::torch ALIAS rpc_backends_torch)
# torch brings pybind11's headers along.
target_include_directories(rpc_backends_torch SYSTEM INTERFACE
  "${rpc_backends_torch_folder}/include" "${rpc_backends_torch_folder}/include/torch/csrc/api/include")
target_compile_definitions(rpc_backends_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${abi})
target_link_directories(rpc_backends_torch INTERFACE "${rpc_backends_torch_folder}/lib")
target_link_libraries(rpc_backends_torch INTERFACE rpc_backends::headers torch torch_cpu c10)
# wheels for many versions of torch are linked to empty libraries of these names.
target_link_options(rpc_backends_torch INTERFACE -Wl,--no-as-needed)

# pybind11 before 3.0 shares types only between modules with one name of the compiler's ABI, so ours has torch's.
function(rpc_backends_use_pybind11_of_torch target)
  file(STRINGS "${rpc_backends_torch_folder}/lib/libtorch_python.so" line REGEX "__pybind11_internals_v[0-9]+_gcc")
  if(line MATCHES "__pybind11_internals_v[0-9]+(_gcc)(_libstdcpp)(_cxxabi[0-9]+)__")
    target_compile_definitions(${target} PRIVATE "PYBIND11_COMPILER_TYPE=\"${CMAKE_MATCH_1}\""
      "PYBIND11_STDLIB=\"${CMAKE_MATCH_2}\"" "PYBIND11_BUILD_ABI=\"${CMAKE_MATCH_3}\"")
  endif()
endfunction()
