// The transport of the tests that moves memory of the accelerator of the tests itself, between agents of one process.
// It is used through ctypes, so it is compiled as C++17 against transport.h only. The accelerator's memory is the
// host's, so memcpy() moves it.
#include <rpc_backends_agents/transport.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

using namespace rpc_backends;

namespace {

class DeviceTransport;

std::mutex all_mutex;
std::map<std::string, std::weak_ptr<DeviceTransport>> all;

class DeviceTransport final : public Transport, public std::enable_shared_from_this<DeviceTransport> {
 public:
  ~DeviceTransport() override { close(0); }

  Text listen(int self, std::string_view name) override {
    self_ = self;
    std::lock_guard<std::mutex> lock(all_mutex);
    const std::string address = std::string(name) + std::to_string(++listened_);
    all[address] = weak_from_this();
    thread_ = std::thread([this] { send_all(); });
    return address;
  }

  void learn(int peer, std::string_view /*name*/, std::string_view address) override {
    std::lock_guard<std::mutex> lock(mutex_);
    addresses_[peer] = address;
  }

  void forget(int /*peer*/) override {}

  void send(int peer, Parts parts, bool /*reply*/) override {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.emplace_back(peer, std::move(parts));
    changed_.notify_all();
  }

  bool receive(Event& event) override { return events_.pop(event); }
  void reject(int peer, std::string_view reason) override { events_.push({Event::Kind::kLost, peer, {}, reason}); }

  void close(double /*linger*/) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
    events_.close();
  }

  bool moves(std::string_view device_type) const override { return device_type == "late"; }
  void set_allocator(DeviceAllocator allocate) override { allocate_ = std::move(allocate); }

  Metrics metrics() const override {
    return {{"moved_bytes", std::to_string(moved_)}, {"largest_host_part", std::to_string(largest_host_part_)}};
  }

  // Whether received parts are put into memory that is not the allocator's.
  std::atomic<bool> forges{false};

 private:
  void send_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      auto [peer, parts] = std::move(queue_.front());
      queue_.pop_front();
      const std::string address = addresses_[peer];
      lock.unlock();
      std::shared_ptr<DeviceTransport> receiver;
      {
        std::lock_guard<std::mutex> reading(all_mutex);
        receiver = all[address].lock();
      }
      try {
        if (receiver) {
          receiver->take(self_, parts);
        }
      } catch (const std::exception& error) {
        events_.push({Event::Kind::kLost, peer, {}, error.what()});
        events_.push({Event::Kind::kFound, peer, {}, {}});
      }
      parts.clear();
      receiver.reset();
      lock.lock();
    }
  }

  void take(int from, const Parts& parts) {
    Parts taken;
    for (const Part& part : parts) {
      std::shared_ptr<void> block(std::malloc(part.size + 1), std::free);
      Part place{block.get(), part.size, block};
      if (!part.memory.is_host()) {
        moved_ += part.size;
        place = allocate_(part.target, part.size);
        if (forges) {
          place = {block.get(), part.size, block, place.memory};
        }
      } else {
        largest_host_part_ = std::max<size_t>(largest_host_part_, part.size);
      }
      std::memcpy(const_cast<void*>(place.data), part.data, part.size);
      taken.push_back(std::move(place));
    }
    events_.push({Event::Kind::kMessage, from, std::move(taken), {}});
  }

  static std::atomic<int> listened_;
  int self_ = -1;
  EventQueue events_;
  DeviceAllocator allocate_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int, Parts>> queue_;
  std::map<int, std::string> addresses_;
  std::atomic<size_t> moved_{0}, largest_host_part_{0};
  bool closed_ = false;
};

std::atomic<int> DeviceTransport::listened_{0};

}  // namespace

extern "C" {

// Returns what the capsule of a transport holds. Never freed: a test's process ends soon.
void* device_transport_new() {
  return new std::shared_ptr<Transport>(std::make_shared<DeviceTransport>());
}

const char* device_transport_capsule_name() {
  return kTransportCapsule;
}

void device_transport_forge(void* transport, int forges) {
  static_cast<DeviceTransport*>(static_cast<std::shared_ptr<Transport>*>(transport)->get())->forges = forges != 0;
}
}
