// The texts that pass between extension modules.
//
// libstdc++ has two layouts of std::string, and each torch was compiled with one of them (_GLIBCXX_USE_CXX11_ABI). The
// agents have torch's, other extensions have the compiler's default. So the interfaces have no std::string: arguments
// are a std::string_view, and texts that are returned or stored are a Text. Both are the same with either layout.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rpc_backends {

class Text {
 public:
  Text() = default;
  Text(const char* text) : Text(std::string_view(text)) {}
  Text(const std::string& text) : Text(std::string_view(text)) {}
  Text(std::string_view text) : bytes_(text.begin(), text.end()) {}

  operator std::string_view() const { return {data(), size()}; }

  // Not zero-terminated.
  const char* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  template <typename Other, typename = std::enable_if_t<std::is_convertible_v<const Other&, std::string_view>>>
  friend bool operator==(const Text& text, const Other& other) {
    return std::string_view(text) == std::string_view(other);
  }

  friend bool operator<(const Text& text, const Text& other) {
    return std::string_view(text) < std::string_view(other);
  }

 private:
  std::vector<char> bytes_;
};

// Values for the agent's metrics, by name.
using Metrics = std::map<Text, Text>;

}  // namespace rpc_backends
