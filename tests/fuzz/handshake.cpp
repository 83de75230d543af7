// Whatever a stranger sends during the handshake of TLS, it fails in order, and gives no data. It ends well only with
// the key of the honest peer. Whatever is changed after it, what is read is a prefix of what the honest peer has sent.
//
// The first byte of an input says which side gets it, and whether it comes alone or changes what an honest peer sends,
// in the handshake or after it: then each three bytes are a position and what the byte there is combined with.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "keys.h"
#include "tls.h"

namespace rpc_backends::zeromq {

namespace {

using Handshake = TlsChannel::Handshake;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

std::pair<std::unique_ptr<Fd>, std::unique_ptr<Fd>> socket_pair() {
  int ends[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {std::make_unique<Fd>(ends[0]), std::make_unique<Fd>(ends[1])};
}

std::string received(int fd) {
  std::string all;
  char buffer[65536];
  for (ssize_t got = 0; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    all.append(buffer, static_cast<size_t>(got));
  }
  return all;
}

void put(int fd, const std::string& data) {
  [[maybe_unused]] const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
}

bool is_over(Handshake state) {
  return state == Handshake::kDone || state == Handshake::kFailed;
}

struct Peer {
  Peer() : keys(make_keys(Crypto::get(false))), context(Crypto::get(false), keys.first, keys.second) {}
  std::pair<std::string, SecretText> keys;
  TlsContext context;
};

void expect_nothing_to_read(TlsChannel& channel) {
  char buffer[100];
  check(channel.read(buffer, sizeof buffer) <= 0);
}

void send_alone(TlsChannel& channel, int other_end, const std::string& data) {
  channel.shake_hands();
  put(other_end, data);
  for (int i = 0; i < 4; ++i) {
    const Handshake state = channel.shake_hands();
    check(state != Handshake::kDone);
    if (state == Handshake::kFailed) {
      check(!channel.failure().empty());
      break;
    }
  }
}

bool change(std::string& data, const std::string& changes, size_t& offset) {
  bool has_changed = false;
  for (size_t i = 0; i + 3 <= changes.size(); i += 3) {
    const size_t position = static_cast<uint8_t>(changes[i]) | static_cast<size_t>(static_cast<uint8_t>(changes[i + 1]))
                                                                   << 8;
    if (position >= offset && position < offset + data.size() && changes[i + 2] != 0) {
      data[position - offset] = static_cast<char>(data[position - offset] ^ changes[i + 2]);
      has_changed = true;
    }
  }
  offset += data.size();
  return has_changed;
}

void change_honest(bool of_caller, const std::string& changes) {
  static const Peer one, two;
  auto [end_one, at_one] = socket_pair();
  auto [end_two, at_two] = socket_pair();
  const auto caller = one.context.connecting(std::move(end_one), two.keys.first);
  const auto called = two.context.listening(std::move(end_two));
  Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
  size_t offset = 0;
  bool has_changed = false;
  for (int i = 0; i < 6; ++i) {
    here = is_over(here) ? here : caller->shake_hands();
    std::string data = received(at_one->get());
    has_changed = (of_caller && change(data, changes, offset)) || has_changed;
    put(at_two->get(), data);
    there = is_over(there) ? there : called->shake_hands();
    data = received(at_two->get());
    has_changed = (!of_caller && change(data, changes, offset)) || has_changed;
    put(at_one->get(), data);
  }
  check(has_changed || (here == Handshake::kDone && there == Handshake::kDone));
  // TLS ignores a few bytes, such as the version in the head of the first records.
  if (here == Handshake::kDone) {
    check(caller->peer_key() == two.keys.first);
    expect_nothing_to_read(*caller);
  }
  if (there == Handshake::kDone) {
    check(called->peer_key() == one.keys.first);
    expect_nothing_to_read(*called);
  }
}

void change_data(const std::string& changes) {
  static const Peer one, two;
  auto [end_one, at_one] = socket_pair();
  auto [end_two, at_two] = socket_pair();
  const auto caller = one.context.connecting(std::move(end_one), two.keys.first);
  const auto called = two.context.listening(std::move(end_two));
  Handshake here = Handshake::kNeedsData, there = Handshake::kNeedsData;
  for (int i = 0; i < 6; ++i) {
    here = is_over(here) ? here : caller->shake_hands();
    put(at_two->get(), received(at_one->get()));
    there = is_over(there) ? there : called->shake_hands();
    put(at_one->get(), received(at_two->get()));
  }
  check(here == Handshake::kDone && there == Handshake::kDone);
  std::string sent;
  for (const size_t size : {size_t{10}, size_t{300}, size_t{1}, size_t{64}, size_t{2000}}) {
    const std::string data(size, static_cast<char>('a' + sent.size() % 26));
    const iovec place{const_cast<char*>(data.data()), data.size()};
    check(caller->write(&place, 1) == static_cast<ssize_t>(size));
    sent += data;
  }
  caller->finish();
  std::string wire = received(at_one->get());
  size_t offset = 0;
  const bool has_changed = change(wire, changes, offset);
  put(at_two->get(), wire);
  ::shutdown(at_two->get(), SHUT_WR);
  std::string read;
  char buffer[777];
  ssize_t got = 0;
  for (int i = 0; i < 100 && ((got = called->read(buffer, sizeof buffer)) > 0 || (got == -1 && errno == EAGAIN)); ++i) {
    read.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
  check(sent.compare(0, read.size(), read) == 0);
  check(has_changed || (got == 0 && read == sent));
  check(got == -1 || read == sent);  // an orderly end comes last
}

void write_seeds(const std::filesystem::path& folder) {
  const Peer one;
  auto [end, other] = socket_pair();
  const auto caller = one.context.connecting(std::move(end), one.keys.first);
  caller->shake_hands();
  const std::string hello = received(other->get());
  int number = 0;
  for (const std::string& seed :
       {std::string("\0", 1) + hello, std::string("\1", 1) + hello, std::string("\2\0\0\0", 4),
        std::string("\2\5\0\1\x30\0\x10", 7), std::string("\3\7\0\1\x50\1\x20", 7), std::string("\4\0\0\0", 4),
        std::string("\4\3\0\1\x50\1\x20", 7)}) {
    std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
  }
}

}  // namespace

}  // namespace rpc_backends::zeromq

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  if (const char* folder = std::getenv("FUZZ_WRITE_SEEDS")) {
    rpc_backends::zeromq::write_seeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rpc_backends::zeromq;
  if (size == 0) {
    return 0;
  }
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 4) != 0) {
    change_data(rest);
    return 0;
  }
  if ((data[0] & 2) != 0) {
    change_honest((data[0] & 1) != 0, rest);
    return 0;
  }
  static const Peer peer;
  auto [end, other] = socket_pair();
  const auto channel = (data[0] & 1) != 0 ? peer.context.connecting(std::move(end), peer.keys.first)
                                          : peer.context.listening(std::move(end));
  send_alone(*channel, other->get(), rest);
  return 0;
}
