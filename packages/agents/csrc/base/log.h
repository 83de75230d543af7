// Logs the agents' warnings (to Python's logger once the module is imported), and catches exceptions on their threads.
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
// Logs a warning that may repeat: at most one per second of the same `kind`, with the number of warnings that were left
// out.
void warn_seldom(const std::string& kind, const std::string& text);
void send_warnings_to(std::function<void(const std::string&)> sink);

// In a catch block: returns the text of the exception, without the stack trace that torch adds.
std::string thrown_text();
// In a catch block: logs and counts the exception; `where` completes the sentence "RPC: an error ...".
void note_thrown(const char* where) noexcept;
// The number of exceptions that note_thrown() has counted in this process.
uint64_t noted_errors();

// Runs `work`; returns the text of the exception that it throws, if any.
template <typename Work>
std::optional<std::string> error_in(Work&& work) {
  try {
    std::forward<Work>(work)();
    return std::nullopt;
  } catch (const abi::__forced_unwind&) {
    throw;  // Python ends a thread that takes the GIL after the interpreter has ended
  } catch (...) {
    return thrown_text();
  }
}

// Runs `work`; an exception is logged by note_thrown() and goes no further. Returns false if there was one.
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
