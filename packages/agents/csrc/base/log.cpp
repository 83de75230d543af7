#include "base/log.h"

#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <unordered_map>

namespace rpc_backends {

namespace {

constexpr std::chrono::seconds kSeldom{1};
// The most kinds that are remembered. There are few, but some contain the name of a peer.
constexpr size_t kMostKinds = 1000;

struct Repeated {
  std::chrono::steady_clock::time_point next;
  uint64_t left_out = 0;
};

std::atomic<uint64_t> noted{0};

struct State {
  std::mutex sink_mutex;
  std::function<void(const std::string&)> sink;
  std::mutex seldom_mutex;
  std::unordered_map<std::string, Repeated> repeated;
};

// Never destroyed: threads may still run while the process exits.
State& state() {
  static auto* const state = new State();
  return *state;
}

}  // namespace

void send_warnings_to(std::function<void(const std::string&)> new_sink) {
  // The former sink, which may own a Python object, is destroyed without the lock.
  std::lock_guard<std::mutex> lock(state().sink_mutex);
  state().sink.swap(new_sink);
}

void warn(const std::string& text) {
  std::function<void(const std::string&)> current;
  {
    std::lock_guard<std::mutex> lock(state().sink_mutex);
    current = state().sink;
  }
  if (current) {
    current(text);
  } else {
    std::cerr << text << '\n';
  }
}

void warn_seldom(const std::string& kind, const std::string& text) {
  uint64_t left_out = 0;
  {
    std::lock_guard<std::mutex> lock(state().seldom_mutex);
    auto& repeated = state().repeated;
    const auto now = std::chrono::steady_clock::now();
    if (repeated.size() >= kMostKinds) {
      repeated.clear();
    }
    Repeated& known = repeated[kind];
    if (now < known.next) {
      ++known.left_out;
      return;
    }
    known.next = now + kSeldom;
    std::swap(left_out, known.left_out);
  }
  warn(left_out == 0 ? text : text + " (" + std::to_string(left_out) + " more of this kind were not logged)");
}

std::string thrown_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from"));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

void note_thrown(const char* where) noexcept {
  ++noted;
  try {
    warn_seldom(where, std::string("RPC: an error ") + where + ": " + thrown_text());
  } catch (...) {  // not enough memory for the log line
  }
}

uint64_t noted_errors() {
  return noted;
}

}  // namespace rpc_backends
