# What an extension for rpc-backends-agents needs to be built:
#
#     project(my_project LANGUAGES NONE)
#     find_package(rpc_backends_agents CONFIG REQUIRED)
#     rpc_backends_extension(my_module my_package._native csrc/bindings.cpp csrc/transport.cpp)
#
# scikit-build-core finds this file by itself. For CMake alone, set CMAKE_PREFIX_PATH to the folder of the package
# rpc_backends_agents. An extension needs no torch, and serves every torch. Cache variable:
#
#     RPC_BACKENDS_PREBUILT  a folder with compiled extensions (`package/name.*.so`), which are installed instead of being built
#
# Target: rpc_backends::headers, for libraries and tests in C++ that are no extension.
include_guard(GLOBAL)

if(NOT CMAKE_CXX_COMPILER_LOADED)
  include(CheckLanguage)
  check_language(CXX)
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "error: there is no C++ compiler here. Install one (Debian and Ubuntu: apt install g++), or set "
      "the variable CXX to its path.")
  endif()
  enable_language(CXX)
endif()

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
      "it. Install ${distribution} first, or build with `pip install` and build isolation.")
  endif()
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()

if(NOT TARGET rpc_backends::headers)
  cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH package)
  add_library(rpc_backends_headers INTERFACE)
  add_library(rpc_backends::headers ALIAS rpc_backends_headers)
  target_include_directories(rpc_backends_headers INTERFACE "${package}/include")
  target_compile_options(rpc_backends_headers INTERFACE -Wall -Wextra -fwrapv)
  target_link_libraries(rpc_backends_headers INTERFACE Threads::Threads)
endif()

# Compile the certificates and algorithms of include/rpc_backends_agents/openssl into a static library.
#
# OpenSSL is linked statically where that is possible, so that a wheel needs none of the system; its symbols stay inside
# the extension, because Python's own ssl has another copy.
macro(rpc_backends_use_openssl target)
  set(OPENSSL_USE_STATIC_LIBS ON)
  find_package(OpenSSL 3.0)
  if(NOT OPENSSL_FOUND)
    unset(OPENSSL_USE_STATIC_LIBS)
    find_package(OpenSSL 3.0)
  endif()
  if(NOT OPENSSL_FOUND)
    message(FATAL_ERROR "error: OpenSSL 3 with its headers is not installed here. Install libssl-dev (Debian, Ubuntu), or "
      "openssl-devel (Fedora, RHEL).")
  endif()
  get_target_property(rpc_backends_include rpc_backends_headers INTERFACE_INCLUDE_DIRECTORIES)
  target_sources(${target} PRIVATE "${rpc_backends_include}/rpc_backends_agents/openssl/certificates.cpp"
    "${rpc_backends_include}/rpc_backends_agents/openssl/crypto.cpp")
  if(OPENSSL_CRYPTO_LIBRARY MATCHES "\\.a$")
    target_compile_definitions(${target} PRIVATE OPENSSL_IS_OURS)
  endif()
  target_link_libraries(${target} PUBLIC OpenSSL::SSL OpenSSL::Crypto)
endmacro()

# Build an extension module and install it in its package: rpc_backends_extension(TARGET package.name SOURCES...).
# It is compiled with the headers of the installed pybind11.
function(rpc_backends_extension target module)
  string(REPLACE "." ";" words "${module}")
  list(POP_BACK words name)
  list(JOIN words "/" package)
  if(NOT package)
    set(package ".")  # a module of its own
  endif()
  rpc_backends_module(${target} ${package} ${name} ${ARGN})
  find_package(pybind11 2.13 CONFIG QUIET)
  if(NOT pybind11_FOUND)
    rpc_backends_find_package_folder(pybind11_folder pybind11 pybind11)
    find_package(pybind11 2.13 CONFIG REQUIRED PATHS "${pybind11_folder}/share/cmake/pybind11" NO_DEFAULT_PATH)
  endif()
  target_link_libraries(${target} PRIVATE pybind11::headers)
endfunction()

# The same without pybind11, in a folder: rpc_backends_module(TARGET package/folder name SOURCES...)
function(rpc_backends_module target folder name)
  python_add_library(${target} MODULE WITH_SOABI ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/modules/${folder}")
  target_link_libraries(${target} PRIVATE rpc_backends::headers)
  file(GLOB prebuilt "${RPC_BACKENDS_PREBUILT}/${folder}/${name}.*.so")
  if(RPC_BACKENDS_PREBUILT AND prebuilt)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    install(FILES ${prebuilt} DESTINATION ${folder})
  else()
    install(TARGETS ${target} DESTINATION ${folder})
  endif()
endfunction()
