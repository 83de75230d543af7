#include "inspect/pickle_limits.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rpc_backends {

namespace {

// About what CPython takes for a value, or for its place in another one.
constexpr uint64_t kObject = 64;
constexpr uint64_t kContainer = 232;
constexpr uint64_t kPlace = 16;

// What the check knows of a value.
struct Value {
  enum class Kind { kPlain, kGlobal, kRebuild, kMade };

  uint32_t depth = 0;
  Kind kind = Kind::kPlain;
  std::string_view text;  // of a text
};

using Kind = Value::Kind;

// Executes the opcodes on a stack of what is known of each value.
class Check {
 public:
  Check(std::string_view pickle, const PickleLimits& limits) : pickle_(pickle), limits_(limits) {}

  std::string run() {
    while (problem_.empty() && !stopped_) {
      step();
    }
    if (problem_.empty() && at_ != pickle_.size()) {
      problem_ = "bytes follow the end of the pickle";
    }
    return problem_;
  }

 private:
  void step() {
    const size_t start = at_;
    const uint64_t opcode = number(1);
    if (!problem_.empty()) {
      return;
    }
    switch (opcode) {
      case 0x80:  // PROTO
        if (start != 0 || number(1) > 5) {
          problem_ = "it has a protocol that Python does not write";
        }
        return;
      case 0x95:  // FRAME
        number(8);
        return;
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push(0, 0);
      case 'K':  // BININT1
        return skip(1), push(0, kObject / 2);
      case 'M':  // BININT2
        return skip(2), push(0, kObject / 2);
      case 'J':  // BININT
        return skip(4), push(0, kObject / 2);
      case 'G':  // BINFLOAT
        return skip(8), push(0, kObject / 2);
      case 0x8a:  // LONG1
        return skip(number(1)), push(0, kObject);
      case 0x8c:  // SHORT_BINUNICODE
        return text(number(1));
      case 'X':  // BINUNICODE
        return text(number(4));
      case 0x8d:  // BINUNICODE8
        return text(number(8));
      case 'C':  // SHORT_BINBYTES
        return raw(number(1));
      case 'B':  // BINBYTES
        return raw(number(4));
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return raw(number(8));
      case ')':  // EMPTY_TUPLE
        return push(1, 0);
      case ']':   // EMPTY_LIST
      case '}':   // EMPTY_DICT
      case 0x8f:  // EMPTY_SET
        return push(1, kContainer);
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return;
      case 't':   // TUPLE
      case 0x91:  // FROZENSET
        return collect(take_mark());
      case 0x85:  // TUPLE1
        return collect(1);
      case 0x86:  // TUPLE2
        return collect(2);
      case 0x87:  // TUPLE3
        return collect(3);
      case 'a':  // APPEND
        return put_into(1);
      case 's':  // SETITEM
        return put_into(2);
      case 'e':   // APPENDS
      case 'u':   // SETITEMS
      case 0x90:  // ADDITEMS
        return put_into(take_mark());
      case 0x93:  // STACK_GLOBAL
        return name_global();
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        return call(2);
      case 0x92:  // NEWOBJ_EX
        return call(3);
      case 'b':  // BUILD
        return build();
      case 0x94:  // MEMOIZE
        memory(kPlace);
        memo_.push_back(top());
        return;
      case 'h':  // BINGET
        return recall(number(1));
      case 'j':  // LONG_BINGET
        return recall(number(4));
      case '0':  // POP
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();  // as Python does
          return;
        }
        pop(1);
        return;
      case '1':  // POP_MARK
        pop(take_mark());
        return;
      case '.':  // STOP
        stopped_ = true;
        if (stack_.size() != 1 || !marks_.empty()) {
          problem_ = "it does not end with one value";
        }
        return;
      default:
        problem_ =
            "it has the opcode " + std::to_string(opcode) +
            ", which Python does not write for a call (extension codes, persistent ids and old protocols are not "
            "permitted)";
    }
  }

  uint64_t number(int size) {
    if (pickle_.size() - at_ < static_cast<size_t>(size)) {
      problem_ = "it ends too early";
      at_ = pickle_.size();
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < size; ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(pickle_[at_ + i])) << (8 * i);
    }
    at_ += size;
    return value;
  }

  void skip(uint64_t size) {
    if (pickle_.size() - at_ < size) {
      problem_ = "it ends too early";
      return;
    }
    at_ += size;
  }

  void text(uint64_t size) {
    const size_t start = at_;
    skip(size);
    if (!problem_.empty()) {
      return;
    }
    // Python takes one, two or four bytes for each character, as the widest one needs.
    unsigned char widest = 0;
    for (const char byte : pickle_.substr(start, size)) {
      widest = std::max(widest, static_cast<unsigned char>(byte));
    }
    push(0, kObject + size * (widest >= 0xf0 ? 4 : widest >= 0xc4 ? 2 : 1));
    stack_.back().text = pickle_.substr(start, size);
  }

  void raw(uint64_t size) {
    skip(size);
    push(0, kObject + size);
  }

  void memory(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > limits_.bytes && problem_.empty()) {
      problem_ = "its values take more than " + std::to_string(limits_.bytes) + " bytes";
    }
  }

  void push(size_t depth, uint64_t bytes, Kind kind = Kind::kPlain) {
    memory(bytes + kPlace);
    if (depth > limits_.depth && problem_.empty()) {
      problem_ = "its values are nested more than " + std::to_string(limits_.depth) + " deep";
    }
    stack_.push_back({static_cast<uint32_t>(depth), kind, {}});
  }

  // The number of values above the last mark, which it removes.
  size_t take_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) {
      problem_ = "it lacks a mark";
      return 0;
    }
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  // Removes values, and returns the greatest depth among them. Values below the last mark stay.
  size_t pop(size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) {
      problem_ = "it takes more values than there are";
      return 0;
    }
    size_t depth = 0;
    for (; count > 0; --count) {
      depth = std::max<size_t>(depth, stack_.back().depth);
      stack_.pop_back();
    }
    return depth;
  }

  void collect(size_t count) {
    const size_t depth = pop(count);
    push(depth + 1, kObject + count * kPlace);
  }

  void put_into(size_t count) {
    const size_t depth = pop(count);
    memory(count * kPlace * 8);  // an entry of a dict or a set takes about that
    const Value container = top();
    if (problem_.empty()) {
      stack_.pop_back();
      push(std::max<size_t>(container.depth, depth + 1), 0, container.kind);
    }
  }

  // A name is used as Python's pickle does: from the two texts before it.
  void name_global() {
    const Value name = top();
    pop(2);
    push(0, 0, name.text.starts_with("_rebuild") ? Kind::kRebuild : Kind::kGlobal);
  }

  void call(size_t count) {
    const Kind callee = stack_.size() < count ? Kind::kPlain : stack_[stack_.size() - count].kind;
    const size_t depth = pop(count);
    push(depth + 1, kContainer, callee == Kind::kGlobal ? Kind::kMade : Kind::kPlain);
  }

  // Sets the state of an object that the pickle has made. Classes, functions and tensors have a state, too, which no
  // pickle of a call sets.
  void build() {
    const size_t depth = pop(1);
    const Value object = top();
    if (!problem_.empty()) {
      return;
    }
    if (object.kind != Kind::kMade) {
      problem_ = "it sets the state of a value that it has not made of a class";
      return;
    }
    stack_.pop_back();
    push(std::max<size_t>(object.depth, depth + 1), 0, Kind::kMade);
  }

  Value top() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      problem_ = "it takes more values than there are";
      return {};
    }
    return stack_.back();
  }

  void recall(uint64_t index) {
    if (index >= memo_.size()) {
      problem_ = "it names an entry of the memo that is not there";
      return;
    }
    const Value& known = memo_[index];
    push(known.depth, 0, known.kind);
    stack_.back().text = known.text;
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

std::string check_pickle(std::string_view pickle, const PickleLimits& limits) {
  return Check(pickle, limits).run();
}

}  // namespace rpc_backends
