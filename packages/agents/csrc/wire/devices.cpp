#include "wire/devices.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/log.h"

namespace rpc_backends {

namespace {

// How long the thread sleeps between two looks at copies that run: first shortly, later longer.
constexpr std::chrono::microseconds kFirstSleep{20};
constexpr std::chrono::microseconds kLongestSleep{500};

at::Tensor bytes_of(const c10::Storage& storage, uint64_t begin, uint64_t size) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, at::kStrided, storage.device())),
      caffe2::TypeMeta::Make<uint8_t>());
  const int64_t sizes[] = {static_cast<int64_t>(size)};
  const int64_t strides[] = {1};
  bytes.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes), at::IntArrayRef(strides),
                                                     static_cast<int64_t>(begin));
  return bytes;
}

at::Tensor host_bytes(uint64_t size) {
  // Not every accelerator has page-locked memory.
  static const bool can_pin =
      !error_in([] { at::empty({1}, at::TensorOptions(at::kByte).pinned_memory(true)); }).has_value();
  return at::empty({static_cast<int64_t>(size)}, at::TensorOptions(at::kByte).pinned_memory(can_pin));
}

}  // namespace

void Devices::set(DeviceMaps maps) {
  std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back(std::move(maps));
  current_.store(&kept_.back(), std::memory_order_release);
}

c10::Device Placement::target(c10::Device device) const {
  if (map != nullptr) {
    if (const auto mapped = map->find(device); mapped != map->end()) {
      return mapped->second;
    }
  }
  if (device.is_cpu()) {
    return device;
  }
  if (device.is_meta()) {
    throw std::runtime_error("it is on meta and has no data; send its shape and dtype, or a tensor with data");
  }
  const char* const kind = is_request ? "Request" : "Response";
  const std::string name = receiver ? receiver() : "another worker";
  const std::string remedy = is_request ? "map it in the option device_maps of this worker"
                                        : "map a device to it in the option device_maps of " + name;
  throw std::runtime_error("it is on " + device.str() + ". " + kind +
                           " device mapping is not available for destination " + name + ": " + remedy +
                           ", or call .cpu() before you send it");
}

Copies::~Copies() {
  if (!devices_.empty()) {
    contained("while waiting for a copy", [&] { wait(); });
  }
  while (!events_.empty()) {
    // Without the guard, a runtime may start to use its first device here.
    const c10::OptionalDeviceGuard guard(events_.back().device());
    events_.pop_back();
  }
}

void Copies::add(c10::Device device, std::initializer_list<c10::Storage> memory) {
  memory_.insert(memory_.end(), memory);
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
  }
}

c10::Storage Copies::to_host(const c10::Storage& storage, uint64_t begin, uint64_t size) {
  const at::NoGradGuard no_grad;
  at::Tensor host = host_bytes(size);
  if (size > 0) {
    add(storage.device(), {storage, host.storage()});
    host.copy_(bytes_of(storage, begin, size), /*non_blocking=*/true);
  }
  return host.storage();
}

c10::Storage Copies::on_device(const c10::Storage& storage, uint64_t begin, uint64_t size) {
  const at::NoGradGuard no_grad;
  c10::Storage there = empty_storage(size, storage.device());
  add(storage.device(), {storage, there});
  bytes_of(there, 0, size).copy_(bytes_of(storage, begin, size), /*non_blocking=*/true);
  return there;
}

c10::Storage Copies::to_device(const c10::Storage& host, c10::Device device) {
  c10::Storage there = empty_storage(host.nbytes(), device);
  if (host.nbytes() > 0) {
    into(there, 0, host);
  }
  return there;
}

void Copies::into(const c10::Storage& storage, uint64_t begin, const c10::Storage& host) {
  const at::NoGradGuard no_grad;
  const c10::Device device = storage.device();
  if (!device.is_cpu()) {
    add(device, {host, storage});
  }
  bytes_of(storage, begin, host.nbytes()).copy_(bytes_of(host, 0, host.nbytes()), /*non_blocking=*/true);
}

void Copies::record() {
  for (const c10::Device& device : devices_) {
    record(device);
  }
}

void Copies::record(c10::Device device) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  c10::Event event(device.type());
  event.record(impl.getStream(device));
  events_.push_back(std::move(event));
}

bool Copies::have_ended() const {
  return std::all_of(events_.begin(), events_.end(), [](const c10::Event& event) { return event.query(); });
}

void Copies::wait() {
  if (events_.empty()) {
    for (const c10::Device& device : devices_) {
      const c10::impl::VirtualGuardImpl impl(device.type());
      impl.synchronizeStream(impl.getStream(device));
    }
  }
  for (const c10::Event& event : events_) {
    event.synchronize();
  }
  devices_.clear();
  memory_.clear();
}

c10::Storage empty_storage(uint64_t size, c10::Device device) {
  return at::empty({static_cast<int64_t>(size)}, at::TensorOptions(at::kByte).device(device)).storage();
}

Memory memory_of(c10::Device device) {
  if (device.is_cpu()) {
    return {};
  }
  static std::mutex mutex;
  static auto* const names = new std::unordered_map<int, std::string>();
  std::lock_guard<std::mutex> lock(mutex);
  const auto [name, is_new] = names->try_emplace(static_cast<int>(device.type()));
  if (is_new) {
    name->second = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  }
  return {name->second.c_str(), device.index()};
}

struct ReceivedMemory::Known {
  std::mutex mutex;
  std::unordered_map<const void*, c10::Storage> storages;
  // Nothing but allocation happens on these streams, so what they return can be written at once.
  std::unordered_map<c10::Device, c10::Stream> streams;
};

std::shared_ptr<ReceivedMemory::Known> ReceivedMemory::make_known() {
  return std::make_shared<Known>();
}

Part ReceivedMemory::allocate(c10::Device device, uint64_t size) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  std::optional<c10::Stream> stream;
  {
    std::lock_guard<std::mutex> lock(known_->mutex);
    stream = known_->streams.try_emplace(device, impl.getStreamFromGlobalPool(device)).first->second;
  }
  const c10::StreamGuard guard(*stream);
  const c10::Storage storage = empty_storage(size, device);
  impl.synchronizeStream(*stream);
  const void* const data = storage.data();
  {
    std::lock_guard<std::mutex> lock(known_->mutex);
    known_->storages.insert_or_assign(data, storage);
  }
  const auto forget = [known = known_, data](void* /*unused*/) {
    c10::Storage last;  // released without the lock
    std::lock_guard<std::mutex> lock(known->mutex);
    if (const auto kept = known->storages.find(data); kept != known->storages.end()) {
      last = std::move(kept->second);
      known->storages.erase(kept);
    }
  };
  return {data, size, std::shared_ptr<void>(const_cast<void*>(data), forget), memory_of(device), {}};
}

c10::Storage ReceivedMemory::storage_of(const Part& part) {
  std::lock_guard<std::mutex> lock(known_->mutex);
  const auto kept = known_->storages.find(part.data);
  if (kept == known_->storages.end() || kept->second.nbytes() != part.size) {
    throw std::invalid_argument("the transport delivered memory of a device that it did not get from its allocator");
  }
  const c10::Storage storage = kept->second;
  const c10::impl::VirtualGuardImpl impl(storage.device().type());
  impl.recordDataPtrOnStream(storage.data_ptr(), impl.getStream(storage.device()));
  return storage;
}

std::vector<c10::Stream> streams_from_pool(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  }
  return streams;
}

std::vector<c10::Stream> current_streams(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Stream> streams;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device().is_cpu()) {
      continue;
    }
    const c10::Device device = tensor.device();
    const bool is_known = std::any_of(streams.begin(), streams.end(),
                                      [&](const c10::Stream& stream) { return stream.device() == device; });
    if (!is_known) {
      streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
  return streams;
}

void AfterCopies::run(Copies copies, std::function<void()> then) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    contained("while waiting for a copy", [&] { copies.wait(); });
    return;
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { watch(); });
  }
  waiting_.push_back({std::move(copies), std::move(then)});
  changed_.notify_one();
}

void AfterCopies::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void AfterCopies::watch() {
  auto sleep = kFirstSleep;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    const bool stopped = stopped_;
    std::list<Waiting> ended;
    for (auto entry = waiting_.begin(); entry != waiting_.end();) {
      const auto next = std::next(entry);
      // An accelerator that has failed counts as finished: the program sees its error at its next operation.
      bool has_ended = true;
      contained("while waiting for a copy", [&] { has_ended = stopped || entry->copies.have_ended(); });
      if (has_ended) {
        ended.splice(ended.end(), waiting_, entry);
      }
      entry = next;
    }
    lock.unlock();
    for (Waiting& entry : ended) {
      contained("while waiting for a copy", [&] { entry.copies.wait(); });
      if (entry.then && !stopped) {
        contained("after a copy between host and device", entry.then);
      }
    }
    if (stopped) {
      return;
    }
    if (ended.empty()) {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kLongestSleep);
    } else {
      sleep = kFirstSleep;
      ended.clear();
    }
    lock.lock();
  }
}

}  // namespace rpc_backends
