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

// What one unit of weight stands for: a number, or so many bytes of a text.
constexpr uint64_t kUnit = 32;
// Large enough to exceed every limit, small enough that sums of two do not overflow.
constexpr uint64_t kMostWeight = uint64_t{1} << 50;
constexpr std::string_view kModule = "torch.distributed.rpc.internal";

enum class Kind : uint8_t {
  kOther,      // floats, long numbers, frozen sets, and what a made function returns
  kSimpleKey,  // None, truth values, short numbers, texts and bytes: a sender cannot choose many with one hash
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,
  kRebuild,  // a function that makes a tensor
  kGetattr,
  kCall,       // torch's class of calls
  kException,  // torch's class of exceptions
  kPickler,    // torch's class that has the functions that make tensors of a message
  // The steps of a call as torch pickles it.
  kReceiverArguments,
  kReceiver,
  kCallArguments,
  kWholeCall,
  kMade,  // of a class
};

// What the check knows of a value.
struct Value {
  uint32_t depth = 0;
  Kind kind = Kind::kOther;
  bool has_names = false;       // whether it is or holds a function or a class
  bool has_other_keys = false;  // of a dict: whether a key is no text
  bool is_recalled = false;     // of an entry of the memo: whether the pickle refers to it
  uint32_t memo = 0;            // the number of its entry in the memo, from 1; 0 if it has none
  uint64_t weight = 1;          // the units that a walk through it visits; what it holds twice counts twice
  std::string_view text;        // of a text; the name of a function or class
  std::string_view module;
};

uint64_t sum(uint64_t a, uint64_t b) {
  return std::min(a + b, kMostWeight);
}

// Executes the opcodes on a stack of what is known of each value.
class Check {
 public:
  Check(std::string_view pickle, const PickleLimits& limits) : pickle_(pickle), limits_(limits) {
    // What most calls need, in one piece of memory each.
    constexpr size_t kUsual = 24;
    stack_.reserve(kUsual);
    memo_.reserve(kUsual);
  }

  PickleReport run() {
    while (problem_.empty() && !stopped_) {
      step();
    }
    if (problem_.empty() && at_ != pickle_.size()) {
      problem_ = "bytes follow the end of the pickle";
    }
    if (!problem_.empty()) {
      return {problem_, PickleReport::Form::kOther, {}};
    }
    const Value& value = stack_.back();
    if (calls_others_ || names_others_ > (value.kind == Kind::kWholeCall ? 1 : 0)) {
      return {};
    }
    if (value.kind == Kind::kWholeCall) {
      return {{}, PickleReport::Form::kCall, std::string(value.module) + ":" + std::string(value.text)};
    }
    return {{}, value.has_names ? PickleReport::Form::kOther : PickleReport::Form::kPlain, {}};
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
        return push(0, 0, Kind::kSimpleKey);
      case 'K':  // BININT1
        return skip(1), push(0, kObject / 2, Kind::kSimpleKey);
      case 'M':  // BININT2
        return skip(2), push(0, kObject / 2, Kind::kSimpleKey);
      case 'J':  // BININT
        return skip(4), push(0, kObject / 2, Kind::kSimpleKey);
      case 'G':  // BINFLOAT
        return skip(8), push(0, kObject / 2);
      case 0x8a:  // LONG1
        return long_number(number(1));
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
        return push(1, 0, Kind::kTuple);
      case ']':  // EMPTY_LIST
        return push(1, kContainer, Kind::kList);
      case '}':  // EMPTY_DICT
        return push(1, kContainer, Kind::kDict);
      case 0x8f:  // EMPTY_SET
        return push(1, kContainer, Kind::kSet);
      case '(':  // MARK
        memory(kPlace);
        marks_.push_back(stack_.size());
        return;
      case 't':  // TUPLE
        return collect(take_mark());
      case 0x91: {  // FROZENSET
        const size_t count = take_mark();
        hash_keys(count, 1);
        return collect(count, Kind::kOther);
      }
      case 0x85:  // TUPLE1
        return collect(1);
      case 0x86:  // TUPLE2
        return collect(2);
      case 0x87:  // TUPLE3
        return collect(3);
      case 'a':  // APPEND
        return put_into(Kind::kList, 1);
      case 'e':  // APPENDS
        return put_into(Kind::kList, take_mark());
      case 's':  // SETITEM
        return put_into(Kind::kDict, 2);
      case 'u':  // SETITEMS
        return put_into(Kind::kDict, take_mark());
      case 0x90:  // ADDITEMS
        return put_into(Kind::kSet, take_mark());
      case 0x93:  // STACK_GLOBAL
        return name_global();
      case 'R':  // REDUCE
        return call(2, false);
      case 0x81:  // NEWOBJ
        return call(2, true);
      case 0x92:  // NEWOBJ_EX
        return call(3, true);
      case 'b':  // BUILD
        return build();
      case 0x94:  // MEMOIZE
        return memoize();
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
    push(0, kObject + size * (widest >= 0xf0 ? 4 : widest >= 0xc4 ? 2 : 1), Kind::kSimpleKey);
    stack_.back().text = pickle_.substr(start, size);
    stack_.back().weight += size / kUnit;
  }

  void raw(uint64_t size) {
    skip(size);
    if (problem_.empty()) {
      push(0, kObject + size, Kind::kSimpleKey);
      stack_.back().weight += size / kUnit;
    }
  }

  // Python's hash of a whole number is its remainder by 2^61 - 1.
  void long_number(uint64_t size) {
    skip(size);
    push(0, kObject, size < 8 ? Kind::kSimpleKey : Kind::kOther);
  }

  void memory(uint64_t bytes) {
    bytes_ = sum(bytes_, bytes);
    if (bytes_ > limits_.bytes && problem_.empty()) {
      problem_ = "its values take more than " + std::to_string(limits_.bytes) + " bytes, or as much time to read";
    }
  }

  // Counts the time for which a walk through values occupies Python as memory of the same size.
  void walk(uint64_t weight) { memory(weight * kUnit); }

  void push(size_t depth, uint64_t bytes, Kind kind = Kind::kOther, uint64_t weight = 1) {
    memory(bytes + kPlace);
    if (depth > limits_.depth && problem_.empty()) {
      problem_ = "its values are nested more than " + std::to_string(limits_.depth) + " deep";
    }
    if (stack_.size() == highest_) {  // the stack of this check is memory, too
      ++highest_;
      memory(sizeof(Value));
    }
    Value& value = stack_.emplace_back();
    value.depth = static_cast<uint32_t>(depth);
    value.kind = kind;
    value.weight = weight;
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

  // What values have together.
  struct Taken {
    size_t depth = 0;
    uint64_t weight = 0;
    bool has_names = false;
  };

  // Whether there are so many values above the last mark.
  bool has(size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= count) {
      return true;
    }
    problem_ = "it takes more values than there are";
    return false;
  }

  // Removes values. Those below the last mark stay.
  Taken pop(size_t count) {
    Taken taken;
    if (!has(count)) {
      return taken;
    }
    for (; count > 0; --count) {
      taken.depth = std::max<size_t>(taken.depth, stack_.back().depth);
      taken.weight = sum(taken.weight, stack_.back().weight);
      taken.has_names = taken.has_names || stack_.back().has_names;
      stack_.pop_back();
    }
    return taken;
  }

  void collect(size_t count, Kind kind = Kind::kTuple) {
    if (!has(count)) {
      return;
    }
    const Value* const first = stack_.data() + stack_.size() - count;
    std::string_view module;
    std::string_view text;
    if (count == 2 && first->kind == Kind::kPickler && first[1].text == "_tensor_receiver") {
      kind = Kind::kReceiverArguments;
    } else if (count == 3 && first->kind == Kind::kGlobal && are_arguments(first[1]) && are_keywords(first[2])) {
      kind = Kind::kCallArguments;
      module = first->module;
      text = first->text;
    }
    const Taken taken = pop(count);
    push(taken.depth + 1, kObject + count * kPlace, kind, sum(taken.weight, 1));
    Value& made = stack_.back();
    made.has_names = taken.has_names;
    made.module = module;
    made.text = text;
  }

  // Every `step`th of the last values, from the first, is hashed, and may be compared with those before it.
  void hash_keys(size_t count, size_t step) {
    if (!has(count)) {
      return;
    }
    for (size_t i = stack_.size() - count; i < stack_.size(); i += step) {
      walk(stack_[i].weight);
      if (stack_[i].kind != Kind::kSimpleKey && ++keys_ > limits_.keys && problem_.empty()) {
        problem_ = "it has more than " + std::to_string(limits_.keys) +
                   " keys of dicts or items of sets that are not texts, bytes or numbers below 2^55; a sender can "
                   "choose such keys with equal hashes";
      }
    }
  }

  // Whether the keys are texts in pairs of the last values.
  bool are_texts(size_t count) {
    if (!has(count)) {
      return false;
    }
    for (size_t i = stack_.size() - count; i < stack_.size(); i += 2) {
      if (stack_[i].kind != Kind::kSimpleKey || stack_[i].text.data() == nullptr) {
        return false;
      }
    }
    return true;
  }

  static bool are_arguments(const Value& value) {
    return (value.kind == Kind::kTuple || value.kind == Kind::kList) && !value.has_names;
  }

  static bool are_keywords(const Value& value) {
    return value.kind == Kind::kDict && !value.has_other_keys && !value.has_names;
  }

  // Refuses to change a value that is also in another place: it would have another depth there, and can then hold
  // itself. Python's pickles complete a value before they refer to it, unless it holds itself.
  bool may_change(const Value& value) {
    if (value.memo != 0 && memo_[value.memo - 1].is_recalled) {
      problem_ = "it changes a value that it also refers to, as values do that hold themselves";
      return false;
    }
    return problem_.empty();
  }

  void replace_top(Value value, const Taken& added) {
    value.depth = static_cast<uint32_t>(std::max<size_t>(value.depth, added.depth + 1));
    value.weight = sum(value.weight, added.weight);
    stack_.pop_back();
    push(value.depth, 0, value.kind, value.weight);
    stack_.back().memo = value.memo;
    stack_.back().has_names = value.has_names || added.has_names;
    stack_.back().has_other_keys = value.has_other_keys;
    if (value.memo != 0) {
      memo_[value.memo - 1] = stack_.back();
    }
  }

  // `kind`: the builtin container that the opcode is for. Objects of classes may have the methods that it needs.
  void put_into(Kind kind, size_t count) {
    if (kind != Kind::kList) {
      hash_keys(count, kind == Kind::kDict ? 2 : 1);
    }
    const bool has_other_keys = kind == Kind::kDict && !are_texts(count);
    const Taken taken = pop(count);
    memory(count * kPlace * (kind == Kind::kList ? 1 : 8));  // an entry of a dict or a set takes about that
    Value container = top();
    if (!may_change(container)) {
      return;
    }
    if (container.kind != kind && container.kind != Kind::kMade) {
      problem_ = "it puts values into one that is neither a container for them nor made of a class";
      return;
    }
    container.has_other_keys = container.has_other_keys || has_other_keys;
    replace_top(container, taken);
  }

  // A name is used as Python's pickle does: from the two texts before it.
  void name_global() {
    if (!has(2)) {
      return;
    }
    for (size_t i = stack_.size() - 2; i < stack_.size(); ++i) {
      if (stack_[i].kind != Kind::kSimpleKey || stack_[i].text.empty()) {
        problem_ = "it names a function or a class by what is no text";
        return;
      }
    }
    const std::string_view name = stack_.back().text;
    const std::string_view module = stack_[stack_.size() - 2].text;
    pop(2);
    Kind kind = Kind::kGlobal;
    if (module == kModule) {
      kind = name == "PythonUDF"             ? Kind::kCall
             : name == "RemoteException"     ? Kind::kException
             : name == "_InternalRPCPickler" ? Kind::kPickler
                                             : Kind::kGlobal;
    } else if (module == "builtins" && name == "getattr") {
      kind = Kind::kGetattr;
    } else if (name.starts_with("_rebuild")) {
      kind = Kind::kRebuild;
    }
    if (kind != Kind::kCall && kind != Kind::kPickler && kind != Kind::kGetattr) {
      ++names_others_;
    }
    push(0, 0, kind);
    stack_.back().has_names = true;
    stack_.back().text = name;
    stack_.back().module = module;
  }

  void call(size_t count, bool is_new) {
    if (!has(count)) {
      return;
    }
    const Kind callee = stack_[stack_.size() - count].kind;
    const Value arguments = stack_.back();
    const Taken taken = pop(count);
    if (callee == Kind::kCall || callee == Kind::kException) {
      memory(kPlace);  // they take their values as they are
    } else {
      walk(taken.weight);
    }
    Kind made = callee == Kind::kGlobal ? Kind::kMade : Kind::kOther;
    bool has_names = taken.has_names;
    if (callee == Kind::kGetattr && arguments.kind == Kind::kReceiverArguments && !is_new) {
      made = Kind::kReceiver;
    } else if (callee == Kind::kReceiver && !arguments.has_names && !is_new) {
      has_names = false;  // a tensor
    } else if (callee == Kind::kCall && arguments.kind == Kind::kCallArguments && is_new && count == 2) {
      made = Kind::kWholeCall;
    } else {
      calls_others_ = true;
    }
    push(taken.depth + 1, kContainer, made, sum(taken.weight, 1));
    Value& value = stack_.back();
    value.has_names = has_names;
    if (made == Kind::kWholeCall) {
      value.text = arguments.text;
      value.module = arguments.module;
    }
  }

  // Sets the state of an object that the pickle has made. Classes, functions and tensors have a state, too, which no
  // pickle of a call sets.
  void build() {
    const Taken taken = pop(1);
    const Value object = top();
    if (!may_change(object)) {
      return;
    }
    if (object.kind != Kind::kMade) {
      problem_ = "it sets the state of a value that it has not made of a class";
      return;
    }
    walk(taken.weight);
    calls_others_ = true;
    replace_top(object, taken);
  }

  void memoize() {
    memory(sizeof(Value) + kPlace);
    if (!has(1)) {
      return;
    }
    if (stack_.back().memo != 0) {
      problem_ = "it keeps a value twice";
      return;
    }
    stack_.back().memo = static_cast<uint32_t>(memo_.size() + 1);
    memo_.push_back(stack_.back());
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
    const Value known = memo_[index];
    memo_[index].is_recalled = true;
    push(known.depth, 0, known.kind, known.weight);
    stack_.back() = known;
  }

  const std::string_view pickle_;
  const PickleLimits limits_;
  size_t at_ = 0;
  uint64_t bytes_ = 0;
  uint64_t keys_ = 0;
  size_t highest_ = 0;  // the most values that the stack has had
  bool stopped_ = false;
  // What it names and calls apart from what torch's calls and tensors need. Pickle imports what is named.
  uint64_t names_others_ = 0;
  bool calls_others_ = false;
  std::string problem_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::vector<Value> memo_;
};

}  // namespace

PickleReport check_pickle(std::string_view pickle, const PickleLimits& limits) {
  return Check(pickle, limits).run();
}

}  // namespace rpc_backends
