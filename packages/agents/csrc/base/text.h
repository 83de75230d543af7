// Texts that a peer has sent.
#pragma once

#include <string>
#include <string_view>

namespace rpc_backends {

// The text in valid UTF-8, which Python demands of the text of an error: each other byte is written as \xNN.
std::string valid_utf8(std::string_view text);

}  // namespace rpc_backends
