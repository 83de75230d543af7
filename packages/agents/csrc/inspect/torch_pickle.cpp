#include "inspect/torch_pickle.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rpc_backends {

namespace {

uint32_t nested_brackets(std::string_view text) {
  uint32_t open = 0;
  uint32_t deepest = 0;
  for (const char letter : text) {
    if (letter == '[' || letter == '(') {
      deepest = std::max(deepest, ++open);
    } else if ((letter == ']' || letter == ')') && open > 0) {
      --open;
    }
  }
  return deepest;
}

class TorchPickle {
 public:
  TorchPickle(std::string_view pickle, const PickleLimits& limits) : pickle_(pickle), limits_(limits) {}

  std::string run() {
    while (problem_.empty() && !stopped_) {
      step();
    }
    if (problem_.empty() && at_ != pickle_.size()) {
      problem_ = "bytes follow the end of its pickle";
    }
    return problem_;
  }

 private:
  // About what torch takes for a value and for a container.
  static constexpr uint64_t kOfValue = 32;
  static constexpr uint64_t kOfContainer = 256;
  // The deepest brackets in the name of a type.
  static constexpr uint32_t kDeepestType = 32;

  struct Value {
    uint32_t depth = 0;
    uint32_t brackets = 0;  // in a text, or in the texts of a tuple: how deep they are nested
    bool is_kept = false;   // whether the memo has it
  };

  void step() {
    switch (number(1)) {
      case 0x80:  // PROTO
        number(1);
        return;
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push({});
      case 'K':  // BININT1
        return skip(1), push({});
      case 'M':  // BININT2
        return skip(2), push({});
      case 'J':  // BININT
        return skip(4), push({});
      case 'G':  // BINFLOAT
        return skip(8), push({});
      case 0x8a:  // LONG1
        return skip(number(1)), push({});
      case 'X': {  // BINUNICODE
        const uint64_t size = number(4);
        const size_t start = at_;
        skip(size);
        memory(size);
        return push({0, problem_.empty() ? nested_brackets(pickle_.substr(start, size)) : 0, false});
      }
      case ')':  // EMPTY_TUPLE
      case ']':  // EMPTY_LIST
      case '}':  // EMPTY_DICT
        memory(kOfContainer);
        return push({1, 0, false});
      case '(':  // MARK
        memory(kOfValue);
        marks_.push_back(stack_.size());
        return;
      case 't':  // TUPLE
      case 'l':  // LIST
      case 'd':  // DICT
        return collect(take_mark());
      case 0x85:  // TUPLE1
        return collect(1);
      case 0x86:  // TUPLE2
        return collect(2);
      case 0x87:  // TUPLE3
        return collect(3);
      case 'a':  // APPEND
      case 'b':  // BUILD
        return put_into(1);
      case 's':  // SETITEM
        return put_into(2);
      case 'e':  // APPENDS
      case 'u':  // SETITEMS
        return put_into(take_mark());
      case 'c':  // GLOBAL
        line();
        line();
        return push({});
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        return call();
      case 'Q':  // BINPERSID
        pop(1);
        return push({});
      case 'q':  // BINPUT
        return keep(number(1));
      case 'r':  // LONG_BINPUT
        return keep(number(4));
      case 'h':  // BINGET
        return recall(number(1));
      case 'j':  // LONG_BINGET
        return recall(number(4));
      case '.':  // STOP
        stopped_ = true;
        if (stack_.size() != 1 || !marks_.empty()) {
          fail("its pickle does not end with one value");
        }
        return;
      default:
        fail("its pickle has an opcode that torch does not write");
    }
  }

  void fail(const char* why) {
    if (problem_.empty()) {
      problem_ = why;
    }
  }

  void skip(uint64_t size) {
    if (pickle_.size() - at_ < size) {
      fail("its pickle ends too early");
      at_ = pickle_.size();
      return;
    }
    at_ += size;
  }

  uint64_t number(size_t size) {
    const size_t start = at_;
    skip(size);
    uint64_t value = 0;
    for (size_t i = 0; problem_.empty() && i < size; ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(pickle_[start + i])) << (8 * i);
    }
    return value;
  }

  void line() {
    const size_t end = pickle_.find('\n', at_);
    skip(end == std::string_view::npos ? pickle_.size() + 1 : end + 1 - at_);
  }

  void memory(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > limits_.bytes) {
      fail("its values take too many bytes (max_bytes)");
    }
  }

  void push(Value value) {
    memory(kOfValue);
    if (value.depth > limits_.depth) {
      fail("its values are nested too deep (max_depth)");
    }
    stack_.push_back(value);
  }

  size_t take_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) {
      fail("its pickle lacks a mark");
      return 0;
    }
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  // What values have together. Those below the last mark stay.
  Value pop(size_t count) {
    Value taken;
    if (stack_.size() - (marks_.empty() ? 0 : std::min(marks_.back(), stack_.size())) < count) {
      fail("its pickle takes more values than there are");
      return taken;
    }
    for (; count > 0; --count) {
      taken.depth = std::max(taken.depth, stack_.back().depth);
      taken.brackets = std::max(taken.brackets, stack_.back().brackets);
      stack_.pop_back();
    }
    return taken;
  }

  void collect(size_t count) {
    const Value taken = pop(count);
    memory(kOfContainer);
    push({taken.depth + 1, taken.brackets, false});
  }

  void call() {
    const Value taken = pop(2);
    if (taken.brackets > kDeepestType) {
      fail("it names a type with brackets that are nested too deep");
    }
    memory(kOfContainer);
    push({taken.depth + 1, 0, false});
  }

  // Torch completes a value before it keeps it, so no value can hold itself.
  void put_into(size_t count) {
    const Value taken = pop(count);
    if (stack_.empty() || stack_.back().is_kept) {
      fail("its pickle changes a value that it has kept");
      return;
    }
    const uint32_t depth = std::max(stack_.back().depth, taken.depth + 1);
    memory(kOfValue * count);
    stack_.pop_back();
    push({depth, 0, false});
  }

  void keep(uint64_t number) {
    if (number != memo_.size() || stack_.empty()) {
      fail("its pickle does not number its memo as torch does");
      return;
    }
    memory(kOfValue);
    stack_.back().is_kept = true;
    memo_.push_back(stack_.back());
  }

  void recall(uint64_t number) {
    if (number >= memo_.size()) {
      fail("its pickle names an entry of the memo that is not there");
      return;
    }
    push(memo_[number]);
  }

  const std::string_view pickle_;
  const PickleLimits limits_;
  size_t at_ = 0;
  uint64_t bytes_ = 0;
  bool stopped_ = false;
  std::string problem_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::vector<Value> memo_;
};

}  // namespace

std::string torch_pickle_problem(std::string_view pickle, const PickleLimits& limits) {
  return TorchPickle(pickle, limits).run();
}

}  // namespace rpc_backends
