// Reads the opcodes of a pickle without executing them. The bytes are untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace rpc_backends {

// A pickle from Python without the opcodes PROTO and FRAME, which contains the pickle's length; empty if it has no
// frame.
inline std::string_view without_frame(std::string_view pickle) {
  constexpr size_t kProto = 2;
  constexpr size_t kFrame = 9;
  if (pickle.size() > kProto + kFrame && static_cast<unsigned char>(pickle[kProto]) == 0x95) {
    return pickle.substr(kProto + kFrame);
  }
  return {};
}

// Tracks only strings, where the memo keeps them, and the last number.
class PickleScan {
 public:
  explicit PickleScan(std::string_view bytes) : bytes_(bytes) {}

  enum class Found { kEnd, kText, kBytes, kGlobal, kNumber, kOther };

  // Reads the next opcode; returns kEnd at the end and at an unknown opcode.
  Found next() {
    unsigned char op = 0;
    if (!take_byte(op)) {
      return Found::kEnd;
    }
    switch (op) {
      case 0x80:  // PROTO
        return skip(1) ? Found::kOther : Found::kEnd;
      case 0x95:  // FRAME
        return skip(8) ? Found::kOther : Found::kEnd;
      case 0x8c:  // SHORT_BINUNICODE
        return text_of(1);
      case 'X':  // BINUNICODE
        return text_of(4);
      case 0x8d:  // BINUNICODE8
        return text_of(8);
      case 'C':  // SHORT_BINBYTES
        return bytes_of(1);
      case 'B':  // BINBYTES
        return bytes_of(4);
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return bytes_of(8);
      case 'T':  // BINSTRING
        return bytes_of(4);
      case 'U':  // SHORT_BINSTRING
        return bytes_of(1);
      case 0x94:  // MEMOIZE
        return keep_at(memo_.size());
      case 'q':  // BINPUT
        return keep(1);
      case 'r':  // LONG_BINPUT
        return keep(4);
      case 'h':  // BINGET
        return recall(1);
      case 'j':  // LONG_BINGET
        return recall(4);
      case 0x93:  // STACK_GLOBAL: uses the two strings before it
        return global_of(before_last_, last_);
      case 'c': {  // GLOBAL: two lines
        std::string_view module;
        std::string_view name;
        return take_line(module) && take_line(name) ? global_of(module, name) : Found::kEnd;
      }
      case 'K':  // BININT1
        return number_of(1);
      case 'M':  // BININT2
        return number_of(2);
      case 'J': {  // BININT, which has a sign
        const Found result = number_of(4);
        number_ = static_cast<int32_t>(number_);
        return result;
      }
      case 'G':  // BINFLOAT
        return other(8);
      case 0x8a:  // LONG1
        return long_of();
      case 0x8b:  // LONG4
        return other_of(4);
      case '(':   // MARK
      case ')':   // EMPTY_TUPLE
      case ']':   // EMPTY_LIST
      case '}':   // EMPTY_DICT
      case 't':   // TUPLE
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
      case 'R':   // REDUCE
      case 'b':   // BUILD
      case 'a':   // APPEND
      case 'e':   // APPENDS
      case 's':   // SETITEM
      case 'u':   // SETITEMS
      case 'd':   // DICT
      case 'l':   // LIST
      case '0':   // POP
      case '1':   // POP_MARK
      case '2':   // DUP
      case 'Q':   // BINPERSID
      case 0x81:  // NEWOBJ
      case 0x92:  // NEWOBJ_EX
      case 0x8f:  // EMPTY_SET
      case 0x90:  // ADDITEMS
      case 0x91:  // FROZENSET
      case 0x97:  // NEXT_BUFFER
      case 0x98:  // READONLY_BUFFER
        return other(0);
      default:  // STOP, and opcodes that neither Python nor torch writes
        return Found::kEnd;
    }
  }

  std::string_view text() const { return last_; }
  int64_t number() const { return number_; }
  const std::string& global() const { return global_; }
  // The module in it.
  std::string_view module() const { return module_; }
  size_t position() const { return at_; }

 private:
  bool take_byte(unsigned char& byte) {
    if (at_ >= bytes_.size()) {
      return false;
    }
    byte = static_cast<unsigned char>(bytes_[at_++]);
    return true;
  }

  bool take_number(int size, uint64_t& number) {
    if (bytes_.size() - at_ < static_cast<size_t>(size)) {
      return false;
    }
    number = 0;
    for (int i = 0; i < size; ++i) {
      number |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[at_ + i])) << (8 * i);
    }
    at_ += size;
    return true;
  }

  bool skip(uint64_t size) {
    if (bytes_.size() - at_ < size) {
      return false;
    }
    at_ += size;
    return true;
  }

  bool take_line(std::string_view& line) {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      return false;
    }
    line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  // Takes bytes that follow their length, which has `size_bytes` bytes.
  bool take_bytes(int size_bytes, std::string_view& bytes) {
    uint64_t size = 0;
    if (!take_number(size_bytes, size) || bytes_.size() - at_ < size) {
      return false;
    }
    bytes = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }

  Found text_of(int size_bytes) {
    std::string_view text;
    if (!take_bytes(size_bytes, text)) {
      return Found::kEnd;
    }
    push(text);
    return Found::kText;
  }

  Found bytes_of(int size_bytes) {
    last_is_text_ = false;
    return take_bytes(size_bytes, last_) ? Found::kBytes : Found::kEnd;
  }

  Found other(uint64_t size) {
    last_is_text_ = false;
    return skip(size) ? Found::kOther : Found::kEnd;
  }

  Found number_of(int size_bytes) {
    last_is_text_ = false;
    uint64_t number = 0;
    if (!take_number(size_bytes, number)) {
      return Found::kEnd;
    }
    number_ = static_cast<int64_t>(number);
    return Found::kNumber;
  }

  // A number of up to eight bytes counts; a longer one is skipped.
  Found long_of() {
    unsigned char size = 0;
    if (!take_byte(size)) {
      return Found::kEnd;
    }
    if (size > sizeof(uint64_t)) {
      return other(size);
    }
    const Found result = number_of(size);
    if (size > 0 && size < sizeof(uint64_t) && (number_ >> (8 * size - 1)) == 1) {
      number_ -= int64_t{1} << (8 * size);
    }
    return result;
  }

  Found other_of(int size_bytes) {
    uint64_t size = 0;
    return take_number(size_bytes, size) ? other(size) : Found::kEnd;
  }

  void push(std::string_view text) {
    before_last_ = last_is_text_ ? last_ : std::string_view();
    last_ = text;
    last_is_text_ = true;
  }

  Found global_of(std::string_view module, std::string_view name) {
    global_ = std::string(module) + "." + std::string(name);
    module_ = module;
    last_is_text_ = false;
    return Found::kGlobal;
  }

  // The number of an entry in the memo has `size_bytes` bytes.
  Found keep(int size_bytes) {
    uint64_t at = 0;
    return take_number(size_bytes, at) ? keep_at(at) : Found::kEnd;
  }

  Found keep_at(uint64_t at) {
    memo_[at] = last_is_text_ ? std::optional(last_) : std::nullopt;
    return Found::kOther;
  }

  Found recall(int size_bytes) {
    uint64_t at = 0;
    if (!take_number(size_bytes, at)) {
      return Found::kEnd;
    }
    const auto kept = memo_.find(at);
    if (kept == memo_.end() || !kept->second) {
      last_is_text_ = false;
      return Found::kOther;
    }
    push(*kept->second);
    return Found::kText;
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  std::string_view last_;
  std::string_view before_last_;
  bool last_is_text_ = false;
  int64_t number_ = 0;
  std::string global_;
  std::string_view module_;
  std::unordered_map<uint64_t, std::optional<std::string_view>> memo_;
};

}  // namespace rpc_backends
