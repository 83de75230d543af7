// Text of which no copy stays in memory: it is erased when it is destroyed or moved from.
//
// Who has the memory of a process after a connection's end, as in a core dump, must not be able to read what an
// attacker on the path has recorded.
#pragma once

#include <openssl/crypto.h>

#include <string_view>
#include <vector>

namespace rpc_backends::zeromq {

class SecretText {
 public:
  SecretText() = default;
  explicit SecretText(std::string_view text) : text_(text.begin(), text.end()) {}
  explicit SecretText(size_t size) : text_(size) {}
  SecretText(SecretText&& other) noexcept { swap(other); }
  SecretText& operator=(SecretText&& other) noexcept {
    erase();
    swap(other);
    return *this;
  }
  ~SecretText() { erase(); }

  char* data() { return text_.data(); }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  operator std::string_view() const { return {text_.data(), text_.size()}; }

  void erase() {
    OPENSSL_cleanse(text_.data(), text_.size());
    text_.clear();
  }

 private:
  void swap(SecretText& other) noexcept { text_.swap(other.text_); }

  std::vector<char> text_;  // a short std::string would be copied by its moves
};

}  // namespace rpc_backends::zeromq
