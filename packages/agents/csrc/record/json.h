// Writes JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace rpc_backends {

class Json {
 public:
  Json& begin(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Json& end(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(std::string_view name) {
    value(name);
    text_ += ':';
    first_ = true;
    return *this;
  }
  Json& value(std::string_view text) {
    separate();
    text_ += '"';
    for (const char raw : text) {
      const auto byte = static_cast<unsigned char>(raw);
      if (raw == '"' || raw == '\\') {
        text_ += '\\';
        text_ += raw;
      } else if (byte < 0x20 || byte >= 0x7f) {
        // A text may come from a peer and be no UTF-8: each byte above ASCII becomes the character of that number.
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        text_ += escaped;
      } else {
        text_ += raw;
      }
    }
    text_ += '"';
    return *this;
  }
  Json& value(int64_t number) {
    separate();
    text_ += std::to_string(number);
    return *this;
  }
  template <typename Value>
  Json& field(std::string_view name, const Value& content) {
    key(name);
    if constexpr (std::is_integral_v<Value>) {
      return value(static_cast<int64_t>(content));
    } else {
      return value(std::string_view(content));
    }
  }

  const std::string& text() const { return text_; }

 private:
  void separate() {
    if (!first_) {
      text_ += ',';
    }
    first_ = false;
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace rpc_backends
