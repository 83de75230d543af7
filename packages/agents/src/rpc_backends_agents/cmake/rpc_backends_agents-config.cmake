# What an extension for rpc-backends-agents needs to be built:
#
#     find_package(rpc_backends_agents CONFIG REQUIRED)
#     rpc_backends_extension(my_module my_package._native csrc/bindings.cpp csrc/transport.cpp)
#
# scikit-build-core finds this file by itself. For CMake alone, set CMAKE_PREFIX_PATH to the folder of the package
# rpc_backends_agents. Cache variables:
#
#     RPC_BACKENDS_TORCH     the folder of torch to build for, for example of an unpacked wheel; default: the installed torch.
#                            Nothing of it is run.
#     RPC_BACKENDS_PREBUILT  a folder with compiled extensions (`package/name.*.so`), which are installed instead of being built
#
# Targets: rpc_backends::headers (agents and pybind11), rpc_backends::torch (for what links to torch).
include_guard(GLOBAL)

set(RPC_BACKENDS_TORCH "" CACHE PATH "the folder of torch to build for; empty: the installed torch")
set(RPC_BACKENDS_PREBUILT "" CACHE PATH "a folder with compiled extensions, to be installed instead of being built")

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(Threads REQUIRED)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g0 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

if(NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED ENV{CMAKE_CXX_COMPILER_LAUNCHER})
  find_program(RPC_BACKENDS_CCACHE ccache)
  if(RPC_BACKENDS_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${RPC_BACKENDS_CCACHE}")
  endif()
endif()

# Set a variable to the folder of an installed Python package, without importing the package. Fails if it is missing.
function(rpc_backends_find_package_folder variable package distribution)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util, os; spec = importlib.util.find_spec('${package}'); print(os.path.dirname(spec.origin) if spec and spec.origin else '')"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT folder)
    message(FATAL_ERROR "error: ${distribution} is not installed for ${Python_EXECUTABLE}, and this package is compiled against "
      "it. Install torch and ${distribution} first, and then this package with `pip install --no-build-isolation`.")
  endif()
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()

if(RPC_BACKENDS_TORCH)
  set(rpc_backends_torch_folder "${RPC_BACKENDS_TORCH}")
else()
  rpc_backends_find_package_folder(rpc_backends_torch_folder torch torch)
endif()

# The minor version of torch, for example 2.13.
file(STRINGS "${rpc_backends_torch_folder}/version.py" line REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+" RPC_BACKENDS_TORCH_VERSION "${line}")

# torch's layout of std::string. Strings pass between the agents and transports, so all extensions have the same.
set(abi 1)
file(STRINGS "${rpc_backends_torch_folder}/share/cmake/Torch/TorchConfig.cmake" line REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(line)
  set(abi 0)
endif()

if(NOT TARGET rpc_backends::headers)
  cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH package)
  add_library(rpc_backends_headers INTERFACE)
  add_library(rpc_backends::headers ALIAS rpc_backends_headers)
  target_include_directories(rpc_backends_headers INTERFACE "${package}/include")
  # torch brings pybind11's headers along.
  target_include_directories(rpc_backends_headers SYSTEM INTERFACE
    "${rpc_backends_torch_folder}/include" "${rpc_backends_torch_folder}/include/torch/csrc/api/include")
  target_compile_definitions(rpc_backends_headers INTERFACE _GLIBCXX_USE_CXX11_ABI=${abi})
  target_compile_options(rpc_backends_headers INTERFACE -Wall -Wextra -fwrapv)
  target_link_libraries(rpc_backends_headers INTERFACE Threads::Threads)

  add_library(rpc_backends_torch INTERFACE)
  add_library(rpc_backends::torch ALIAS rpc_backends_torch)
  target_link_directories(rpc_backends_torch INTERFACE "${rpc_backends_torch_folder}/lib")
  target_link_libraries(rpc_backends_torch INTERFACE rpc_backends_headers torch torch_cpu c10)
endif()

# pybind11 before 3.0 shares types only between modules with one name of the compiler's ABI, so ours has torch's.
function(rpc_backends_use_pybind11_of_torch target)
  file(STRINGS "${rpc_backends_torch_folder}/lib/libtorch_python.so" line REGEX "__pybind11_internals_v[0-9]+_gcc")
  if(line MATCHES "__pybind11_internals_v[0-9]+(_gcc)(_libstdcpp)(_cxxabi[0-9]+)__")
    target_compile_definitions(${target} PRIVATE "PYBIND11_COMPILER_TYPE=\"${CMAKE_MATCH_1}\""
      "PYBIND11_STDLIB=\"${CMAKE_MATCH_2}\"" "PYBIND11_BUILD_ABI=\"${CMAKE_MATCH_3}\"")
  endif()
endfunction()

# Build an extension module and install it in its package: rpc_backends_extension(TARGET package.name SOURCES...)
function(rpc_backends_extension target module)
  string(REPLACE "." ";" words "${module}")
  list(POP_BACK words name)
  list(JOIN words "/" package)
  python_add_library(${target} MODULE WITH_SOABI ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/modules/${package}")
  target_link_libraries(${target} PRIVATE rpc_backends::headers)
  file(GLOB prebuilt "${RPC_BACKENDS_PREBUILT}/${package}/${name}.*.so")
  if(RPC_BACKENDS_PREBUILT AND prebuilt)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    install(FILES ${prebuilt} DESTINATION ${package})
  else()
    install(TARGETS ${target} DESTINATION ${package})
  endif()
endfunction()
