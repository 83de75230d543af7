// Tensors on accelerators: the device maps of an agent, the copies between host and device, and the wait for them.
//
// All of this goes through torch's generic interface for devices, so it needs no CUDA to compile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

using torch::distributed::rpc::DeviceMap;

struct DeviceMaps {
  std::unordered_map<std::string, DeviceMap> requests;  // by the name of the callee
  std::unordered_map<int, DeviceMap> answers;           // by the id of the caller
  std::vector<c10::Device> devices;                     // the accelerators that RPC uses here
};

// The device maps of an agent. They change when workers join; readers need no lock.
class Devices {
 public:
  // Null if this worker has neither devices nor device maps.
  const DeviceMaps* get() const { return current_.load(std::memory_order_acquire); }
  void set(DeviceMaps maps);

 private:
  std::atomic<const DeviceMaps*> current_{nullptr};
  std::mutex mutex_;
  std::list<DeviceMaps> kept_;  // torch keeps references to `devices`
};

// Where the tensors of a message go.
struct Placement {
  const DeviceMap* map = nullptr;         // null: this worker has no device map for the receiver
  std::function<std::string()> receiver;  // returns its name, for errors
  bool is_request = true;
  // Not 0: large storages of accelerators are sent in pieces, with this number in their heads.
  uint64_t session = 0;
  // Not null: whether the transport moves memory of a type of device itself.
  std::function<bool(c10::DeviceType)> is_moved = nullptr;

  // Whether memory on `device` goes to the receiver without the host's memory.
  bool is_direct(c10::Device device, c10::Device target) const {
    return is_moved && !device.is_cpu() && !target.is_cpu() && is_moved(device.type()) && is_moved(target.type());
  }

  // Returns the receiver's device for memory that is on `device` here. The CPU stays the CPU if it is not mapped.
  // Throws std::runtime_error, like torch's TENSORPIPE, if an accelerator is not mapped.
  c10::Device target(c10::Device device) const;
};

// Copies that run on the current streams of accelerators, and the memory that they use.
class Copies {
 public:
  Copies() = default;
  Copies(Copies&&) = default;
  Copies& operator=(Copies&&) = default;
  // Waits for the copies: they have not been handed over, because the message cannot be sent or is not valid.
  ~Copies();

  // Returns host memory that gets a copy of part of `storage`, which is on an accelerator. The copy is ordered after
  // the current stream of that device. The memory is page-locked if torch has that for the accelerator.
  c10::Storage to_host(const c10::Storage& storage, uint64_t begin, uint64_t size);
  // The same, but the copy stays on the device.
  c10::Storage on_device(const c10::Storage& storage, uint64_t begin, uint64_t size);
  // Returns memory on `device` that gets a copy of `host`, on the current stream of that device.
  c10::Storage to_device(const c10::Storage& host, c10::Device device);
  // Copies all of `host` to `storage`, which may also be on the CPU, from the byte `begin` on. On an accelerator, the
  // copy runs on the current stream.
  void into(const c10::Storage& storage, uint64_t begin, const c10::Storage& host);

  bool empty() const { return devices_.empty(); }
  const std::vector<c10::Device>& devices() const { return devices_; }
  // Records the end of the copies. Call it with the streams that were current when they began.
  void record();
  // Records what the current stream of the device has got so far, as if it belonged to these copies.
  void record(c10::Device device);
  // Whether the recorded copies have ended.
  bool have_ended() const;
  // Waits until the copies have ended, and releases their memory.
  void wait();

 private:
  void add(c10::Device device, std::initializer_list<c10::Storage> memory);

  std::vector<c10::Storage> memory_;
  std::vector<c10::Device> devices_;
  std::vector<c10::Event> events_;
};

// Memory of a device or the CPU, for use on its current stream.
c10::Storage empty_storage(uint64_t size, c10::Device device);

// Memory of accelerators that a transport fills.
class ReceivedMemory {
 public:
  // Reserves memory that may be written at once, on any thread.
  Part allocate(c10::Device device, uint64_t size);
  // Returns the memory in which the part is, for use on the current stream. Throws std::invalid_argument if allocate()
  // did not return it.
  c10::Storage storage_of(const Part& part);

 private:
  struct Known;

  // Shared with the parts.
  std::shared_ptr<Known> known_ = make_known();
  static std::shared_ptr<Known> make_known();
};

// How a transport names a device.
Memory memory_of(c10::Device device);

// A stream of torch's pool for each device.
std::vector<c10::Stream> streams_from_pool(const std::vector<c10::Device>& devices);

// The current stream of each accelerator that one of the tensors is on.
std::vector<c10::Stream> current_streams(const std::vector<at::Tensor>& tensors);

// Runs functions when copies have ended, on a thread of its own that starts when it is first needed.
class AfterCopies {
 public:
  ~AfterCopies() { stop(); }

  // `copies` are recorded.
  void run(Copies copies, std::function<void()> then = nullptr);
  // Waits for all copies and ends the thread. What still waits for its copies is not run.
  void stop();

 private:
  struct Waiting {
    Copies copies;
    std::function<void()> then;
  };

  void watch();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Waiting> waiting_;
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace rpc_backends
