// Where the agents' warnings go: to Python's logger, once the module is imported; and where what their threads
// throw ends.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace rpc_backends {

void warn(const std::string& text);
// A warning that may repeat: of those with the same `kind` one a second is logged, with the number of those that
// were not.
void warn_seldom(const std::string& kind, const std::string& text);
void send_warnings_to(std::function<void(const std::string&)> sink);

// In a catch block: the text of what is being handled, without the stack that torch adds.
std::string thrown_text();
// In a catch block: logs and counts what is being handled; `where` ends the sentence "RPC: an error ...".
void note_thrown(const char* where) noexcept;
// How many errors have been noted, by all agents of this process.
uint64_t noted_errors();

// Does `work`, and returns the text of what it throws.
template <typename Work>
std::optional<std::string> error_in(Work&& work) {
  try {
    std::forward<Work>(work)();
    return std::nullopt;
  } catch (const abi::__forced_unwind&) {
    throw;  // Python ends a thread that wants the GIL after the interpreter
  } catch (...) {
    return thrown_text();
  }
}

// Does `work`, and lets nothing out that it throws: that is noted. Returns whether it threw nothing.
template <typename Work>
bool contained(const char* where, Work&& work) {
  try {
    std::forward<Work>(work)();
    return true;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    note_thrown(where);
    return false;
  }
}

}  // namespace rpc_backends
