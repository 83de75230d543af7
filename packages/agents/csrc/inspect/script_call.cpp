#include "inspect/script_call.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "inspect/pickle_scan.h"

namespace rpc_backends {

namespace {

using Found = PickleScan::Found;

constexpr std::string_view kOperators = "torch.ops.aten.";
// What torch's pickles of arguments name: its own functions, and RRefs and devices.
constexpr std::string_view kOwnFunctions = "torch.jit._pickle.";
constexpr std::string_view kRRef = "torch.distributed.rpc.rref";
constexpr std::string_view kDevice = "torch.device";
// The most opcodes that the end of a call consists of.
constexpr size_t kTail = 32;
// The longest name of a function, and the longest schema of an operator. Torch parses schemas by recursion.
constexpr size_t kLongestSchema = 4096;

struct Token {
  char opcode = 0;
  std::string_view text;
};

// The last opcodes of a pickle without those of the memo, the last one first. Empty if the pickle does not end with
// STOP, or names a class or function that the arguments of a script call do not need.
std::vector<Token> read_tail(std::string_view pickle) {
  std::vector<Token> tokens;
  PickleScan scan(pickle);
  for (;;) {
    const size_t at = scan.position();
    if (at >= pickle.size()) {
      return {};
    }
    const char opcode = pickle[at];
    if (opcode == '.') {
      if (at + 1 != pickle.size()) {
        return {};  // torch ignores what follows
      }
      break;
    }
    const Found token = scan.next();
    if (token == Found::kEnd) {
      return {};
    }
    if (token == Found::kGlobal && !scan.global().starts_with(kOwnFunctions) && scan.global() != kRRef &&
        scan.global() != kDevice) {
      return {};
    }
    if (opcode == 'q' || opcode == 'r') {
      continue;
    }
    if (tokens.size() == 2 * kTail) {
      tokens.erase(tokens.begin(), tokens.begin() + kTail);
    }
    tokens.push_back({opcode, token == Found::kText ? scan.text() : std::string_view()});
  }
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

// Skips an id: two numbers and the opcode that makes a tuple of them. Returns the position after it, or 0.
size_t skip_id(const std::vector<Token>& tokens, size_t at) {
  const auto is_number = [](char opcode) { return opcode == 'K' || opcode == 'J' || opcode == '\x8a'; };
  if (at + 2 < tokens.size() && tokens[at].opcode == '\x86' && is_number(tokens[at + 1].opcode) &&
      is_number(tokens[at + 2].opcode)) {
    return at + 3;
  }
  // A tuple of two made with MARK.
  if (at + 3 < tokens.size() && tokens[at].opcode == 't' && is_number(tokens[at + 1].opcode) &&
      is_number(tokens[at + 2].opcode) && tokens[at + 3].opcode == '(') {
    return at + 4;
  }
  return 0;
}

}  // namespace

std::optional<ScriptCallee> read_script_call(std::string_view pickle, bool is_remote) {
  const std::vector<Token> tokens = read_tail(pickle);
  if (tokens.empty()) {
    return std::nullopt;
  }
  // Torch makes a tuple of two or three elements without a mark. A remote call has at least four.
  const char end = tokens[0].opcode;
  if (end != 't' && (is_remote || (end != '\x86' && end != '\x87'))) {
    return std::nullopt;
  }
  size_t at = 1;
  for (int id = 0; is_remote && id < 2; ++id) {
    at = skip_id(tokens, at);
    if (at == 0) {
      return std::nullopt;
    }
  }
  if (at + 1 >= tokens.size() || tokens[at].opcode != 'X') {
    return std::nullopt;
  }
  const std::string_view name = tokens[at].text;
  const Token& before = tokens[at + 1];
  if (std::max(name.size(), before.text.size()) > kLongestSchema) {
    return std::nullopt;
  }
  if (!name.starts_with(kOperators)) {
    const bool says_whether_async = before.opcode == '\x88' || before.opcode == '\x89';
    return says_whether_async ? std::optional(ScriptCallee{false, std::string(name)}) : std::nullopt;
  }
  const size_t bracket = before.text.find('(');
  if (before.opcode != 'X' || bracket == std::string_view::npos || bracket == 0) {
    return std::nullopt;
  }
  return ScriptCallee{true, std::string(before.text.substr(0, bracket))};
}

}  // namespace rpc_backends
