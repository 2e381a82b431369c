// An accelerator made of the CPU, for tests on machines that have none: PyTorch believes its tensors lie on a device
// of their own, `rehearsal:0`. It computes every operation on the CPU, refuses tensors of two devices, and counts
// what would make a real device's host wait. Work of planted durations queues up, and the host waits for its end.
// Freed memory is filled with 0xFF, which is NaN to floats, so that a use after it shows.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/copy.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

// Of ATen/autocast_mode.h, which reads the headers of every operation: a third of the time that this file compiles.
namespace at::autocast {
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);
} // namespace at::autocast

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::Storage;
using c10::TensorImpl;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;

struct Counts {
  std::atomic<long> operations{0}, waits{0}, reads{0}, copies_in{0}, waiting_copies_in{0};
} counts;

thread_local DeviceIndex current = 0;
const pid_t first_process = getpid();

void refuse_other_processes() {
  TORCH_CHECK(
      getpid() == first_process,
      "Cannot re-initialize the rehearsal device in a forked subprocess, as CUDA can't be either");
}

// -- time ------------------------------------------------------------------------------------------

// The device works off what it was given, one after another, until `ready_`. Once the clock is held, the host's time
// passes by planted costs and waits only, so that a busy machine changes no time.
class Clock {
 public:
  double now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return unlocked_now();
  }
  void hold() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = unlocked_now();
    is_held_ = true;
  }
  void pass_on_host(double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ += seconds;
  }
  void launch(double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_capturing)
      return;
    ready_ = std::max(ready_, unlocked_now()) + seconds;
  }
  // An ordinary operation: a little of both times, if these are held.
  void launch_operation() {
    if (!is_held_)
      return;
    pass_on_host(kOperation);
    launch(kOperation);
  }
  double ready() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::max(ready_, unlocked_now());
  }
  void wait_until(double time) {
    refuse_in_capture();
    std::unique_lock<std::mutex> lock(mutex_);
    const double left = time - unlocked_now();
    if (left <= 0)
      return;
    if (is_held_) {
      held_ = time;
      return;
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::duration<double>(left));
  }
  void wait() {
    wait_until(ready());
  }
  void refuse_in_capture() const {
    TORCH_CHECK(!is_capturing, "rehearsal error: operation not permitted when stream is capturing");
  }

  std::atomic<bool> is_capturing{false};

 private:
  static constexpr double kOperation = 1e-6;
  double unlocked_now() const {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return is_held_ ? held_ : std::chrono::duration<double>(since_start).count();
  }

  std::mutex mutex_;
  std::atomic<bool> is_held_{false};
  double held_ = 0, ready_ = 0;
} device_clock;

// -- memory: the CPU's, under another name ---------------------------------------------------------

// Bytes that tensors have now and had at most, in multiples of 512 as on CUDA.
struct Held {
  std::atomic<long> now{0}, most{0};

  static long rounded(size_t bytes) {
    return static_cast<long>((bytes + 511) / 512 * 512);
  }
  void take(size_t bytes) {
    now += rounded(bytes);
    most = std::max(most.load(), now.load());
  }
  void give(size_t bytes) {
    now -= rounded(bytes);
  }
} held;

struct Block {
  c10::DataPtr memory;
  size_t bytes;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  held.give(block->bytes);
  if (block->bytes)
    memset(block->memory.get(), 0xFF, block->bytes);
  delete block;
}

c10::DataPtr on_device(c10::DataPtr of_cpu, size_t bytes, DeviceIndex index) {
  void* start = of_cpu.get();
  held.take(bytes);
  return {start, new Block{std::move(of_cpu), bytes}, &release, Device(kType, index)};
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    refuse_other_processes();
    return on_device(c10::GetCPUAllocator()->allocate(bytes), bytes, current);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
} device_memory;

struct PinnedMemory final : c10::Allocator {
  static std::mutex mutex;
  static std::map<const char*, size_t> areas;

  static void forget(void* context) {
    auto* memory = static_cast<c10::DataPtr*>(context);
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto area = areas.find(static_cast<const char*>(memory->get()));
      if (area->second)
        memset(memory->get(), 0xFF, area->second);
      areas.erase(area);
    }
    delete memory;
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto* memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    void* start = memory->get();
    std::lock_guard<std::mutex> lock(mutex);
    areas[static_cast<const char*>(start)] = bytes;
    return {start, memory, &forget, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &forget;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static bool holds(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    auto area = areas.upper_bound(static_cast<const char*>(pointer));
    return area != areas.begin() && (--area, static_cast<const char*>(pointer) < area->first + area->second);
  }
} pinned_memory;
std::mutex PinnedMemory::mutex;
std::map<const char*, size_t> PinnedMemory::areas;

REGISTER_ALLOCATOR(kType, &device_memory)

// -- the device as PyTorch drives it ---------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return Device(kType, current);
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "rehearsal error: invalid device ordinal");
    current = device.index() < 0 ? 0 : device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    current = device.index() < 0 ? 0 : device.index();
  }
  // It has one stream. An event is the time at which the device has done what it was given before.
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    device_clock.refuse_in_capture();
    destroyEvent(*event, 0);
    device_clock.launch_operation();
    *event = new double(device_clock.ready());
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    device_clock.refuse_in_capture();
    return !event || *static_cast<double*>(event) <= device_clock.now();
  }
  void synchronizeEvent(void* event) const override {
    if (event)
      device_clock.wait_until(*static_cast<double*>(event));
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(queryEvent(first) && queryEvent(second), "rehearsal error: device not ready");
    return 1000 * (*static_cast<double*>(second) - *static_cast<double*>(first));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  void synchronizeDevice(const DeviceIndex) const override {
    ++counts.waits;
    device_clock.wait();
  }
  void synchronizeStream(const c10::Stream&) const override {
    ++counts.waits;
    device_clock.wait();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return kDevices;
  }
  void setCurrentDevice(DeviceIndex index) const override {
    Guard().setDevice(Device(kType, index));
  }
  DeviceIndex getCurrentDevice() const override {
    return current;
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return Guard().exchangeDevice(Device(kType, index)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return PinnedMemory::holds(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr memory = device_memory.allocate(bytes);
    memcpy(memory.get(), impl->data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  }
};

// -- random numbers: a stream of its own, as each kind of device has --------------------------------

at::Generator& generator() {
  static at::Generator own = at::detail::createCPUGenerator();
  return own;
}

// While it lives, operations of the CPU draw from the device's stream, whether they take a generator or not.
class DeviceStream {
 public:
  DeviceStream() {
    generator_of_cpu_.set_state(generator().get_state());
  }
  ~DeviceStream() {
    generator().set_state(generator_of_cpu_.get_state());
    generator_of_cpu_.set_state(before_);
  }

 private:
  at::Generator generator_of_cpu_ = at::detail::getDefaultCPUGenerator();
  at::Tensor before_ = generator_of_cpu_.get_state();
};

// -- every operation, on the CPU -------------------------------------------------------------------

c10::DataPtr keeping(const Storage& of_cpu, DeviceIndex index) {
  void* start = of_cpu.mutable_data();
  auto forget = [](void* context) {
    auto* storage = static_cast<Storage*>(context);
    held.give(storage->nbytes());
    if (storage->use_count() == 1 && storage->nbytes() && storage->resizable())
      memset(storage->mutable_data(), 0xFF, storage->nbytes());
    delete storage;
  };
  held.take(of_cpu.nbytes());
  return {start, new Storage(of_cpu), forget, Device(kType, index)};
}

// The tensors of one operation as the CPU sees them, in the same memory; and its results as the device's again.
class Translation {
 public:
  at::Tensor for_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kType)
      return tensor;
    index_ = tensor.device().index();
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    auto& known = storages_[impl];
    if (!known) {
      c10::DataPtr memory(impl->mutable_data(), Device(c10::DeviceType::CPU));
      known = Storage(Storage::use_byte_size_t(), impl->nbytes(), std::move(memory), c10::GetCPUAllocator(), true);
      originals_.emplace(known.unsafeGetStorageImpl(), tensor);
    }
    auto seen = at::detail::make_tensor<TensorImpl>(Storage(known), c10::DispatchKeySet(DispatchKey::CPU), tensor.dtype());
    seen.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    tensors_.emplace_back(seen, tensor);
    return seen;
  }

  at::Tensor for_device(const at::Tensor& tensor) {
    if (!tensor.defined())
      return tensor;
    for (const auto& [seen, original] : tensors_)
      if (seen.is_same(tensor))
        return original;
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    auto input = originals_.find(impl);
    if (input != originals_.end()) {
      const at::Tensor& base = input->second;
      return shaped(at::detail::make_tensor<TensorImpl>(
          TensorImpl::VIEW, Storage(base.storage()), base.key_set(), tensor.dtype()), tensor);
    }
    auto& made = made_[impl];
    if (!made)
      made = Storage(Storage::use_byte_size_t(), impl->nbytes(), keeping(tensor.storage(), index_), &device_memory, true);
    return shaped(at::detail::make_tensor<TensorImpl>(
        Storage(made), c10::DispatchKeySet(DispatchKey::PrivateUse1), tensor.dtype()), tensor);
  }

  // What the operation resized in place, storage and shape.
  void take_over_sizes() {
    for (const auto& [seen, original] : tensors_) {
      auto* theirs = original.storage().unsafeGetStorageImpl();
      const auto& ours = seen.storage();
      if (ours.data() != theirs->data() || ours.nbytes() != theirs->nbytes()) {
        theirs->set_data_ptr_noswap(keeping(ours, index_));
        theirs->set_nbytes(ours.nbytes());
      }
      if (seen.sizes() != original.sizes() || seen.strides() != original.strides())
        shaped(original, seen);
    }
  }

  void set_index(DeviceIndex index) {
    index_ = index;
  }

 private:
  static at::Tensor shaped(at::Tensor tensor, const at::Tensor& like) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return tensor;
  }

  DeviceIndex index_ = current;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<c10::StorageImpl*, Storage> storages_, made_;
  std::unordered_map<c10::StorageImpl*, at::Tensor> originals_;
};

template <typename Change>
IValue changed(const IValue& value, const Change& change) {
  if (value.isTensor())
    return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector())
      list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// As CUDA: only operations element by element take a number that lies on the CPU.
void refuse_two_devices(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  std::optional<Device> device;
  const bool takes_numbers = op.hasTag(at::Tag::pointwise) || op.schema().name().find("index_put") != std::string::npos;
  const std::string name = op.schema().name();
  for (size_t place = 0; place < arguments.size(); ++place) {
    const std::string& argument = op.schema().arguments()[place].name();
    changed(arguments[place], [&](const at::Tensor& tensor) {
      const bool is_number = tensor.defined() && tensor.dim() == 0 && tensor.device().is_cpu();
      if (!(takes_numbers && is_number))
        c10::impl::check_and_update_common_device(device, tensor, name.c_str(), argument.c_str());
      return tensor;
    });
  }
}

// Where the host needs a value, or a size that depends on values, it waits for the device.
bool is_read(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  if (op.hasTag(at::Tag::data_dependent_output))
    return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape))
    return false;
  if (op.schema().name() != "aten::index")
    return true;
  bool has_mask = false;
  changed(arguments[1], [&](const at::Tensor& tensor) {
    has_mask |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    return tensor;
  });
  return has_mask;
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_other_processes();
  const size_t count = op.schema().arguments().size();
  const auto first = stack->end() - count;
  const std::vector<IValue> arguments(first, stack->end());
  refuse_two_devices(op, arguments);
  ++counts.operations;
  device_clock.launch_operation();
  if (is_read(op, arguments)) {
    ++counts.reads;
    device_clock.wait();
  }
  Translation translation;
  stack->erase(first, stack->end());
  for (const IValue& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().type() == kType) {
      translation.set_index(argument.toDevice().index());
      stack->emplace_back(Device(c10::DeviceType::CPU));
    } else {
      stack->push_back(changed(argument, [&](const at::Tensor& tensor) { return translation.for_cpu(tensor); }));
    }
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    std::optional<DeviceStream> stream;
    if (op.hasTag(at::Tag::nondeterministic_seeded))
      stream.emplace();
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  }
  translation.take_over_sizes();
  for (auto result = stack->end() - op.schema().returns().size(); result != stack->end(); ++result)
    *result = changed(*result, [&](const at::Tensor& tensor) { return translation.for_device(tensor); });
}

// PyTorch asks devices other than its own for a convolution of their own, instead of choosing one.
void convolve(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  compute(c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", ""), stack);
}

void convolve_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto first = stack->end() - op.schema().arguments().size();
  const at::Tensor weight = first[2].toTensor();
  const bool is_transposed = first[6].toBool();
  const auto biases = std::vector<int64_t>{is_transposed ? weight.size(1) * first[8].toInt() : weight.size(0)};
  stack->insert(first + 3, IValue(biases));
  compute(c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", ""), stack);
}

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &device_memory, c10::DispatchKeySet(DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_memory,
      c10::DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

void copy_on_cpu(const at::Tensor& from, const at::Tensor& to) {
  Translation translation;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor on_cpu = translation.for_cpu(to);
  on_cpu.copy_(translation.for_cpu(from));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  refuse_other_processes();
  const bool is_read = to.device().type() != kType, is_copy_in = !is_read && from.device().type() != kType;
  const bool waits = !non_blocking || (is_copy_in && !PinnedMemory::holds(from.const_data_ptr()));
  counts.copies_in += is_copy_in;
  counts.reads += is_read && waits;
  counts.waiting_copies_in += is_copy_in && waits;
  device_clock.launch_operation();
  if (waits && (is_read || is_copy_in))
    device_clock.wait();
  copy_on_cpu(from, to);
  return to;
}

at::Tensor& set_storage(
    at::Tensor& tensor, Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.guard_int(__FILE__, __LINE__));
  return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, Storage source) {
  const int64_t size = static_cast<int64_t>(source.nbytes() / tensor.itemsize());
  return set_storage(tensor, std::move(source), 0, c10::SymIntArrayRef({c10::SymInt(size)}), c10::SymIntArrayRef({c10::SymInt(1)}));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolve>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolve_backward>());
  // As on CUDA, tensors on two devices are noticed before types that differ.
  for (const char* name : {"addmm", "mm", "bmm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
}

// -- mixed precision: the operations that matter here, as CUDA has them ----------------------------

template <bool kLower>
void cast_and_compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::AutocastPrivateUse1);
  const auto type = kLower ? at::autocast::get_autocast_dtype(kType) : at::kFloat;
  for (auto argument = stack->end() - op.schema().arguments().size(); argument != stack->end(); ++argument)
    *argument = changed(*argument, [&](const at::Tensor& tensor) {
      return at::autocast::cached_cast(type, tensor, kType);
    });
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name : {"conv2d", "convolution", "linear", "matmul", "mm", "addmm", "bmm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_compute<true>>());
  for (const char* name : {"cross_entropy_loss", "nll_loss", "layer_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_compute<false>>());
}

} // namespace

extern "C" {
void rehearsal_start() {
  static Hooks hooks;
  if (!at::isPrivateUse1HooksRegistered())
    at::RegisterPrivateUse1HooksInterface(&hooks);
}
double rehearsal_now() {
  return device_clock.now();
}
void rehearsal_hold() {
  device_clock.hold();
}
void rehearsal_pass(double seconds) {
  device_clock.pass_on_host(seconds);
}
void rehearsal_launch(double seconds) {
  device_clock.launch(seconds);
}
void rehearsal_capture(bool is_capturing) {
  device_clock.is_capturing = is_capturing;
}
void rehearsal_seed(uint64_t seed) {
  generator().set_current_seed(seed ^ 0x5EED); // other numbers than the CPU's from the same seed
}
size_t rehearsal_generator(uint8_t* into) {
  const at::Tensor state = generator().get_state();
  if (into)
    memcpy(into, state.const_data_ptr(), state.nbytes());
  return state.nbytes();
}
void rehearsal_counts(long* into) {
  into[0] = counts.operations;
  into[1] = counts.waits;
  into[2] = counts.reads;
  into[3] = counts.copies_in;
  into[4] = counts.waiting_copies_in;
}
long rehearsal_most_held_bytes() {
  return held.most.exchange(held.now);
}
}
