// The end of the names of capsules: which layout of std::string an extension was compiled with.
#pragma once

#include <string>

#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define RPC_BACKENDS_ABI ".old-strings"
#else
#define RPC_BACKENDS_ABI ""
#endif
