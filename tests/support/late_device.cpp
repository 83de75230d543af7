// An accelerator for tests, as torch's device type PrivateUse1. Its memory is the host's. Each of its streams is a
// thread with a queue: an operation runs later, after the delay that set_delay() sets. So a missing wait between two
// streams shows as a wrong value.
//
// Freed memory is overwritten on the stream that it was allocated on, as torch's caching allocators would reuse it.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceType kLate = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
// The default stream has number 0; the others are the pool.
constexpr c10::StreamId kStreams = 17;
constexpr int kOverwritten = 0xEE;

std::atomic<int64_t> delay_us{0};

// Counts operations, and holds them when so many have run as allow() says.
class Turnstile {
 public:
  void allow(int64_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = count;
    changed_.notify_all();
  }

  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return left_ != 0; });
    left_ -= left_ > 0 ? 1 : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t left_ = -1;
};

// Never destroyed: the threads of streams run until the process ends.
Turnstile& turnstile() {
  static auto* only = new Turnstile();
  return *only;
}

std::atomic<int64_t> operations{0};

class Queue {
 public:
  void put(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!started_) {
      started_ = true;
      std::thread([this] { run(); }).detach();
    }
    work_.push_back(std::move(work));
    ++put_;
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t until = put_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }

  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ == put_;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !work_.empty(); });
      auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t put_ = 0, done_ = 0;
  bool started_ = false;
};

// Never destroyed: the threads run until the process ends.
Queue& queue(c10::DeviceIndex device, c10::StreamId stream) {
  static auto* queues = new std::array<std::array<Queue, kStreams>, kDevices>();
  return (*queues)[static_cast<size_t>(device)][static_cast<size_t>(stream)];
}

Queue& queue(const c10::Stream& stream) {
  return queue(stream.device_index(), stream.id());
}

class Event {
 public:
  void record(Queue& on, const std::shared_ptr<Event>& self) {
    uint64_t version = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      version = ++wanted_;
    }
    on.put([self, version] {
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->done_ = std::max(self->done_, version);
      self->changed_.notify_all();
    });
  }

  void block(Queue& on, const std::shared_ptr<Event>& self) {
    uint64_t version = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      version = wanted_;
    }
    on.put([self, version] { self->wait_for(version); });
  }

  bool is_done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ >= wanted_;
  }

  void synchronize() {
    uint64_t version = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      version = wanted_;
    }
    wait_for(version);
  }

 private:
  void wait_for(uint64_t version) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= version; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t wanted_ = 0, done_ = 0;
};

using EventPtr = std::shared_ptr<Event>;

// Makes `waiting` wait for what `ahead` has got so far.
void wait_for(Queue& waiting, Queue& ahead) {
  if (&waiting == &ahead) {
    return;
  }
  auto event = std::make_shared<Event>();
  event->record(ahead, event);
  event->block(waiting, event);
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

// --- memory -----------------------------------------------------------------------------------------

struct Block {
  Block(size_t size, c10::Stream stream) : size(size), stream(stream), data(std::aligned_alloc(64, rounded(size))) {}
  ~Block() { std::free(data); }
  Block(const Block&) = delete;

  static size_t rounded(size_t size) { return (size / 64 + 1) * 64; }

  const size_t size;
  const c10::Stream stream;
  void* const data;
  std::mutex mutex;
  std::vector<c10::Stream> users;  // other streams that use the memory
};

void release(void* context) {
  std::unique_ptr<std::shared_ptr<Block>> kept(static_cast<std::shared_ptr<Block>*>(context));
  const std::shared_ptr<Block> block = *kept;
  Queue& own = queue(block->stream);
  for (const c10::Stream& user : block->users) {
    wait_for(own, queue(user));
  }
  own.put([block] { std::memset(block->data, kOverwritten, block->size); });
  // What other streams were told to do with the memory without its allocator's knowledge must not end the process.
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    for (c10::StreamId stream = 0; stream < kStreams; ++stream) {
      if (!queue(device, stream).is_idle()) {
        queue(device, stream).put([block] {});
      }
    }
  }
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(kLate, current_device);
    const c10::Stream stream(c10::Stream::UNSAFE, device, current_streams[static_cast<size_t>(current_device)]);
    auto block = std::make_shared<Block>(size, stream);
    queue(stream).put([block] { std::memset(block->data, kOverwritten, block->size); });
    void* const data = block->data;
    return {data, new std::shared_ptr<Block>(std::move(block)), &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};

Allocator allocator;
REGISTER_ALLOCATOR(kLate, &allocator);

// --- streams and events -----------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kLate; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {kLate, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kDevices, "there is no device ", device);
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return make(device, current_streams.at(number(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return make(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    static std::atomic<uint64_t> next{0};
    return make(device, static_cast<c10::StreamId>(1 + next++ % (kStreams - 1)));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return make(stream.device(), std::exchange(current_streams.at(number(stream.device())), stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override { return queue(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { queue(stream).synchronize(); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    for (c10::StreamId stream = 0; stream < kStreams; ++stream) {
      queue(device, stream).synchronize();
    }
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new EventPtr(std::make_shared<Event>());
    }
    of(*event)->record(queue(stream), of(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      of(event)->block(queue(stream), of(event));
    }
  }
  bool queryEvent(void* event) const override { return event == nullptr || of(event)->is_done(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      of(event)->synchronize();
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<EventPtr*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr && data.get_deleter() == &release) {
      const auto& block = *static_cast<std::shared_ptr<Block>*>(data.get_context());
      std::lock_guard<std::mutex> lock(block->mutex);
      block->users.push_back(stream);
    }
  }

 private:
  static size_t number(c10::Device device) {
    return static_cast<size_t>(device.index() < 0 ? current_device : device.index());
  }
  static c10::Stream make(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kLate, static_cast<c10::DeviceIndex>(number(device))}, id);
  }
  static const EventPtr& of(void* event) { return *static_cast<EventPtr*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
};

Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// --- operations -------------------------------------------------------------------------------------

bool is_late(const at::Tensor& tensor) {
  return tensor.device().type() == kLate;
}

Queue& current(c10::Device device) {
  return queue(device.index(), current_streams.at(static_cast<size_t>(device.index())));
}

// The tensor's memory as a tensor on the CPU. It does not keep the memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!is_late(tensor)) {
    return tensor;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()).device(c10::kCPU));
}

template <typename Work>
void put(c10::Device device, Work work) {
  current(device).put([work = std::move(work)]() mutable {
    turnstile().pass();
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    work();
    ++operations;
  });
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> /*layout*/,
                 std::optional<c10::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> /*layout*/, std::optional<c10::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::Device device = is_late(from) ? from.device() : to.device();
  const bool between_devices = is_late(from) && is_late(to) && from.device() != to.device();
  if (between_devices) {
    wait_for(current(device), current(to.device()));
  }
  at::Tensor target = on_cpu(to);
  put(device, [source = on_cpu(from), target]() mutable { target.copy_(source); });
  if (between_devices) {
    wait_for(current(to.device()), current(device));
  }
  if (!non_blocking && !(is_late(from) && is_late(to))) {
    current(device).synchronize();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> /*format*/) {
  const auto needed = static_cast<size_t>(c10::multiply_integers(size)) * self.itemsize() +
                      static_cast<size_t>(self.storage_offset()) * self.itemsize();
  const c10::Storage& storage = self.storage();
  if (needed > storage.nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr grown = allocator.allocate(needed);
    put(self.device(), [to = grown.get(), from = storage.data(), bytes = storage.nbytes()] {
      if (bytes > 0) {
        std::memcpy(to, from, bytes);
      }
    });
    Guard().recordDataPtrOnStream(storage.data_ptr(), Guard().getStream(self.device()));
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(needed);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  current(self.device()).synchronize();
  return at::native::_local_scalar_dense_cpu(on_cpu(self));
}

at::Tensor& fill(at::Tensor& self, const c10::Scalar& value) {
  put(self.device(), [target = on_cpu(self), value]() mutable { target.fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  return fill(self, 0);
}

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha, at::Tensor& out) {
  const c10::Device device = out.device();
  put(device, [a = on_cpu(self), b = on_cpu(other), c = on_cpu(out), alpha]() mutable { at::add_out(c, a, b, alpha); });
  return out;
}

at::Tensor& add_in_place(at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha) {
  return add_out(self, other, alpha, self);
}

at::Tensor result(const at::Tensor& self, const at::Tensor& other) {
  const c10::Device device = is_late(self) ? self.device() : other.device();
  return empty(at::infer_size(self.sizes(), other.sizes()), at::result_type(self, other), {}, device, {}, {});
}

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha) {
  at::Tensor out = result(self, other);
  return add_out(self, other, alpha, out);
}

at::Tensor mul(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor out = result(self, other);
  put(out.device(), [a = on_cpu(self), b = on_cpu(other), c = on_cpu(out)]() mutable { at::mul_out(c, a, b); });
  return out;
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor& set_source(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                       c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("add.out", &add_out);
  m.impl("add_.Tensor", &add_in_place);
  m.impl("add.Tensor", &add);
  m.impl("mul.Tensor", &mul);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_source);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// --- what Python calls ------------------------------------------------------------------------------

TORCH_LIBRARY(late_device, m) {
  m.def("set_delay(float seconds) -> ()", [](double seconds) { delay_us = static_cast<int64_t>(seconds * 1e6); });
  m.def("allow(int count) -> ()", [](int64_t count) { turnstile().allow(count); });
  m.def("operations() -> int", []() -> int64_t { return operations; });
  m.def("device_count() -> int", []() -> int64_t { return kDevices; });
  m.def("current_device() -> int", []() -> int64_t { return current_device; });
  m.def("set_device(int device) -> ()",
        [](int64_t device) { Guard().setDevice({kLate, static_cast<c10::DeviceIndex>(device)}); });
  m.def("current_stream(int device) -> int",
        [](int64_t device) -> int64_t { return current_streams.at(static_cast<size_t>(device)); });
  m.def("synchronize(int device) -> ()",
        [](int64_t device) { Guard().synchronizeDevice(static_cast<c10::DeviceIndex>(device)); });
}

}  // namespace
