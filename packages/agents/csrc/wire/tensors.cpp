#include "wire/tensors.h"

#include <ATen/NativeFunctions.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "wire/frame.h"

namespace rpc_backends {

namespace {

constexpr uint8_t kRequiresGrad = 1;
constexpr uint8_t kConjugate = 2;
constexpr uint8_t kNegative = 4;
constexpr uint8_t kCoalesced = 8;
constexpr uint8_t kAllFlags = 15;
// The most dimensions of a tensor; torch has no limit. A count below kManyDimensions is sent as one byte, a larger
// count as kManyDimensions and two more bytes.
constexpr size_t kMaxDimensions = UINT16_MAX;
constexpr uint8_t kManyDimensions = 255;
// Storages start at a multiple of the largest element size, so that every offset is a whole number of elements.
constexpr uint64_t kAlignment = 16;
// A view that spans more than this many times the memory of its elements is copied; otherwise it is sent with its gaps.
constexpr uint64_t kWorthCopying = 2;

uint64_t span_end(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  uint64_t last = static_cast<uint64_t>(tensor.storage_offset());
  for (size_t i = 0; i < sizes.size(); ++i) {
    last += static_cast<uint64_t>(sizes[i] - 1) * static_cast<uint64_t>(strides[i]);
  }
  return (last + 1) * tensor.itemsize();
}

uint64_t span_begin(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize() / kAlignment * kAlignment;
}

// Returns the tensor with one element of memory for each element. Receivers reject an expanded member of another
// tensor, because torch would read many more elements than were sent.
at::Tensor unexpanded(const at::Tensor& tensor) {
  const bool expanded =
      tensor.numel() > 0 &&
      tensor.nbytes() > span_end(tensor) - static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
  return expanded ? tensor.contiguous() : tensor;
}

uint8_t flags_of(const at::Tensor& tensor) {
  uint8_t flags = 0;
  flags |= tensor.requires_grad() ? kRequiresGrad : 0;
  flags |= tensor.is_conj() ? kConjugate : 0;
  flags |= tensor.is_neg() ? kNegative : 0;
  return flags;
}

bool is_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}

std::string refusal(size_t number, const std::string& why) {
  return "tensor " + std::to_string(number) + " of the message cannot be sent: " + why;
}

[[noreturn]] void refuse(size_t number, const std::string& why) {
  throw std::invalid_argument(refusal(number, why));
}

c10::ScalarType read_dtype(Reader& in) {
  const auto number = in.get<uint8_t>();
  const auto dtype = static_cast<c10::ScalarType>(number);
  if (number >= static_cast<uint8_t>(c10::ScalarType::NumOptions) || dtype == c10::ScalarType::Undefined) {
    throw BadFrame("a tensor has the unknown dtype " + std::to_string(number));
  }
  return dtype;
}

uint8_t read_flags(Reader& in) {
  const auto flags = in.get<uint8_t>();
  if (flags > kAllFlags) {
    throw BadFrame("a tensor has unknown flags");
  }
  return flags;
}

std::vector<int64_t> read_numbers(Reader& in, size_t count) {
  if (count > in.left() / sizeof(int64_t)) {
    throw BadFrame("a tensor has more dimensions than sizes");
  }
  std::vector<int64_t> numbers(count);
  for (int64_t& number : numbers) {
    number = in.get<int64_t>();
    if (number < 0) {
      throw BadFrame("a tensor has a negative size, stride or offset");
    }
  }
  return numbers;
}

size_t read_dimensions(Reader& in) {
  const auto few = in.get<uint8_t>();
  return few == kManyDimensions ? in.get<uint16_t>() : few;
}

void write_dimensions(Writer& out, int64_t dimensions) {
  out.put(static_cast<uint8_t>(std::min<int64_t>(dimensions, kManyDimensions)));
  if (dimensions >= kManyDimensions) {
    out.put(static_cast<uint16_t>(dimensions));
  }
}

void check_extent(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset,
                  uint64_t itemsize, uint64_t bytes) {
  if (const std::string why = why_outside(sizes, strides, offset, itemsize, bytes); !why.empty()) {
    throw BadFrame("a tensor " + why);
  }
}

// Returns why these are not valid scales of a quantized tensor; empty if they are.
std::string why_no_scales(const at::Tensor& plain, const at::Tensor& scales, const at::Tensor& zero_points,
                          int64_t axis) {
  const bool fits = c10::isQIntType(plain.scalar_type()) && axis >= 0 && axis < plain.dim() && scales.dim() == 1 &&
                    zero_points.dim() == 1 && scales.numel() == plain.size(axis) &&
                    zero_points.numel() == plain.size(axis) && scales.is_contiguous() && zero_points.is_contiguous();
  if (!fits) {
    return "the shape of the scales of a quantized tensor is wrong";
  }
  const auto kind = scales.scalar_type();
  const bool floats = kind == at::kFloat && zero_points.scalar_type() == at::kFloat;
  const bool integers = (kind == at::kDouble || kind == at::kFloat) && zero_points.scalar_type() == at::kLong;
  return floats || integers ? "" : "the dtype of the scales of a quantized tensor is wrong";
}

void set_requires_grad(at::Tensor& tensor, uint8_t flags) {
  if (flags & kRequiresGrad) {
    if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type())) {
      throw BadFrame("a tensor without a floating-point dtype requires grad");
    }
    tensor.set_requires_grad(true);
  }
}

// Runs torch's check of a sparse tensor; the receiver runs the same check.
template <typename Check>
void check_sparse(size_t number, const Check& check) {
  try {
    check();
  } catch (const c10::Error& error) {
    refuse(number, std::string("it is not a valid sparse tensor: ") + error.what_without_backtrace());
  }
}

}  // namespace

std::string why_outside(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, uint64_t itemsize,
                        uint64_t bytes) {
  uint64_t elements = 1;
  bool overflow = offset < 0;
  bool empty = false;
  for (const int64_t size : sizes) {
    overflow |= size < 0 || c10::mul_overflows(elements, static_cast<uint64_t>(size), &elements);
    empty |= size == 0;
  }
  // Torch counts elements and bytes in signed numbers.
  uint64_t whole = 0;
  overflow |= c10::mul_overflows(elements, itemsize, &whole) || whole > static_cast<uint64_t>(INT64_MAX);
  if (empty) {
    // The other sizes of an empty tensor may be anything whose product does not overflow.
    return overflow ? "has sizes that are too large" : "";
  }
  uint64_t last = static_cast<uint64_t>(offset);
  for (size_t i = 0; i < sizes.size(); ++i) {
    uint64_t step = 0;
    overflow |= strides[i] < 0 ||
                c10::mul_overflows(static_cast<uint64_t>(sizes[i] - 1), static_cast<uint64_t>(strides[i]), &step);
    overflow |= c10::add_overflows(last, step, &last);
  }
  uint64_t end = 0;
  overflow |= c10::add_overflows(last, uint64_t{1}, &last);
  overflow |= c10::mul_overflows(last, itemsize, &end);
  if (!overflow && end <= bytes) {
    return "";
  }
  return "exceeds its storage of " + std::to_string(bytes) + " bytes: it needs " +
         (overflow ? std::string("more than 64 bits can count") : std::to_string(end));
}

// --- writing ----------------------------------------------------------------------------------------

TensorWriter::TensorWriter(const std::vector<at::Tensor>& tensors, const Placement& placement) {
  if (tensors.size() > kMaxTensors) {
    throw std::invalid_argument("a message of " + std::to_string(tensors.size()) + " tensors cannot be sent; at most " +
                                std::to_string(kMaxTensors) + " are allowed. Make several calls, or stack the tensors");
  }
  at::NoGradGuard no_grad;
  nodes_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    nodes_.push_back(take_apart(tensors[i], i, placement));
  }
  find_storages(placement);
}

TensorWriter::Node TensorWriter::take_apart(const at::Tensor& tensor, size_t number, const Placement& placement) {
  if (!tensor.defined()) {
    return {TensorKind::kUndefined, tensor, {}};
  }
  if (!tensor.device().is_cpu()) {
    try {
      (void)placement.target(tensor.device());
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(refusal(number, error.what()));
    }
  }
  if (tensor.is_nested()) {
    refuse(number, "it is a nested tensor; send the list from .unbind(), or .to_padded_tensor()");
  }
  const auto layout = tensor.layout();
  if (tensor.dim() > static_cast<int64_t>(kMaxDimensions)) {
    refuse(number, "it has " + std::to_string(tensor.dim()) + " dimensions, and at most " +
                       std::to_string(kMaxDimensions) + " are allowed; call .reshape() before you send it");
  }
  if (layout == at::kSparse) {
    Node node{
        TensorKind::kSparse,
        tensor,
        {checked_member(tensor._indices(), number, "indices"), checked_member(tensor._values(), number, "values")}};
    check_sparse(number, [&] {
      at::_validate_sparse_coo_tensor_args(node.dense[0], node.dense[1], tensor.sizes(), tensor.is_coalesced());
    });
    return node;
  }
  if (is_compressed(layout)) {
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(tensor);
    Node node{TensorKind::kCompressed,
              tensor,
              {checked_member(compressed, number, "compressed indices"), checked_member(plain, number, "plain indices"),
               checked_member(tensor.values(), number, "values")}};
    check_sparse(number, [&] {
      at::_validate_sparse_compressed_tensor_args(node.dense[0], node.dense[1], node.dense[2], tensor.sizes(), layout);
    });
    return node;
  }
  if (layout != at::kStrided) {
    refuse(number, "its layout is " + c10::str(layout) + "; call .to_dense() before you send it");
  }
  check_memory(tensor, number, "elements");
  if (!tensor.is_quantized()) {
    return {TensorKind::kStrided, tensor, {tensor}};
  }
  switch (tensor.qscheme()) {
    case at::kPerTensorAffine:
      return {TensorKind::kQuantizedPerTensor, tensor, {tensor}};
    case at::kPerChannelAffine:
    case at::kPerChannelAffineFloatQParams: {
      const at::Tensor scales = tensor.q_per_channel_scales(), zero_points = tensor.q_per_channel_zero_points();
      check_memory(scales, number, "scales");
      check_memory(zero_points, number, "zero points");
      Node node{TensorKind::kQuantizedPerChannel, tensor, {tensor, scales.contiguous(), zero_points.contiguous()}};
      if (const auto why = why_no_scales(tensor, node.dense[1], node.dense[2], tensor.q_per_channel_axis());
          !why.empty()) {
        refuse(number, why);
      }
      return node;
    }
    default:
      refuse(number, "its quantization scheme " + at::toString(tensor.qscheme()) +
                         " is not supported; call .dequantize() before you send it");
  }
}

void TensorWriter::check_memory(const at::Tensor& tensor, size_t number, const char* what) {
  const auto shown = [&] {
    return std::string("its ") + what + ", of shape " + c10::str(tensor.sizes()) + " and dtype " +
           c10::toString(tensor.scalar_type()) + ", ";
  };
  if (!tensor.has_storage()) {
    refuse(number, shown() + "have no storage; it wraps another tensor (functorch does that): send the wrapped tensor");
  }
  const c10::Storage& storage = tensor.storage();
  if (storage.device() != tensor.device()) {
    refuse(number, shown() + "are in memory of " + storage.device().str() + ", but the tensor is on " +
                       tensor.device().str() + "; send a tensor that is neither fake nor a wrapper");
  }
  if (tensor.numel() == 0) {
    return;
  }
  if (tensor._is_zerotensor()) {
    refuse(number, shown() + "are zeros without memory (torch._efficientzerotensor); call .clone() before you send it");
  }
  const std::string why =
      why_outside(tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.itemsize(), storage.nbytes());
  if (!why.empty()) {
    refuse(number, shown() + "are in a tensor that " + why +
                       "; its storage was resized or freed: send the tensor or a .clone() of it before that");
  }
  if (storage.data() == nullptr) {
    refuse(number, shown() + "have no memory, although their storage claims " + std::to_string(storage.nbytes()) +
                       " bytes; send a tensor that is neither fake nor a wrapper");
  }
}

at::Tensor TensorWriter::checked_member(const at::Tensor& tensor, size_t number, const char* what) {
  check_memory(tensor, number, what);
  return unexpanded(tensor);
}

void TensorWriter::find_storages(const Placement& placement) {
  std::unordered_map<const c10::StorageImpl*, size_t> tensors;
  for (const Node& node : nodes_) {
    for (const at::Tensor& tensor : node.dense) {
      ++tensors[tensor.storage().unsafeGetStorageImpl()];
    }
  }
  struct Span {
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
  };
  std::vector<Span> spans;
  for (Node& node : nodes_) {
    for (at::Tensor& tensor : node.dense) {
      const bool alone = tensors[tensor.storage().unsafeGetStorageImpl()] == 1;
      if (alone && tensor.numel() > 0 && !tensor.is_quantized() &&
          (span_end(tensor) - span_begin(tensor)) > kWorthCopying * tensor.nbytes() + kAlignment) {
        tensor = tensor.clone(at::MemoryFormat::Contiguous);
      }
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      const auto [place, is_new] = index_.try_emplace(storage, storages_.size());
      if (is_new) {
        storages_.push_back({tensor.storage(), 0, 0, placement.target(tensor.device()), {}, false, false});
        spans.emplace_back();
      }
      if (tensor.numel() > 0) {
        Span& span = spans[place->second];
        span.begin = std::min(span.begin, span_begin(tensor));
        span.end = std::max(span.end, span_end(tensor));
      }
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end > 0) {
      storages_[i].begin = spans[i].begin;
      storages_[i].size = spans[i].end - spans[i].begin;
      const c10::Device device = storages_[i].storage.device();
      storages_[i].is_direct = placement.is_direct(device, storages_[i].target);
      storages_[i].in_pieces =
          placement.session != 0 && !device.is_cpu() && !storages_[i].is_direct && storages_[i].size > kPieceBytes;
    }
  }
}

void TensorWriter::copy(Copies& copies) {
  for (StorageRange& range : storages_) {
    if (range.is_direct) {
      range.copied = copies.on_device(range.storage, range.begin, range.size);
    } else if (!range.storage.device().is_cpu() && !range.in_pieces) {
      range.copied = copies.to_host(range.storage, range.begin, range.size);
    }
  }
}

void TensorWriter::write(Writer& out) const {
  for (const Node& node : nodes_) {
    out.put(node.kind);
    const at::Tensor& whole = node.whole;
    switch (node.kind) {
      case TensorKind::kUndefined:
        break;
      case TensorKind::kStrided:
        write_strided(out, node.dense[0]);
        break;
      case TensorKind::kQuantizedPerTensor:
        out.put(whole.q_scale());
        out.put(whole.q_zero_point());
        write_strided(out, node.dense[0]);
        break;
      case TensorKind::kQuantizedPerChannel:
        out.put(whole.q_per_channel_axis());
        for (const at::Tensor& dense : node.dense) {
          write_strided(out, dense);
        }
        break;
      case TensorKind::kSparse:
      case TensorKind::kCompressed: {
        const bool coalesced = node.kind == TensorKind::kSparse && whole.is_coalesced();
        out.put(static_cast<uint8_t>((whole.requires_grad() ? kRequiresGrad : 0) | (coalesced ? kCoalesced : 0)));
        if (node.kind == TensorKind::kCompressed) {
          out.put(static_cast<uint8_t>(whole.layout()));
        }
        write_dimensions(out, whole.dim());
        for (const int64_t size : whole.sizes()) {
          out.put(size);
        }
        for (const at::Tensor& dense : node.dense) {
          write_strided(out, dense);
        }
        break;
      }
    }
  }
}

void TensorWriter::write_strided(Writer& out, const at::Tensor& tensor) const {
  const size_t index = index_.at(tensor.storage().unsafeGetStorageImpl());
  out.put(static_cast<uint8_t>(tensor.scalar_type()));
  out.put(flags_of(tensor));
  write_dimensions(out, tensor.dim());
  out.put(static_cast<uint32_t>(index));
  const auto first = static_cast<int64_t>(storages_[index].begin / tensor.itemsize());
  out.put(tensor.numel() > 0 ? tensor.storage_offset() - first : int64_t{0});
  for (const int64_t size : tensor.sizes()) {
    out.put(size);
  }
  for (const int64_t stride : tensor.strides()) {
    out.put(stride);
  }
}

// --- reading ----------------------------------------------------------------------------------------

at::Tensor TensorReader::read(Reader& in) const {
  const auto kind = in.get<uint8_t>();
  switch (static_cast<TensorKind>(kind)) {
    case TensorKind::kUndefined:
      return {};
    case TensorKind::kStrided: {
      Strided strided = read_strided(in);
      if (c10::isQIntType(strided.tensor.scalar_type())) {
        throw BadFrame("a tensor has a quantized dtype but no scale");
      }
      set_requires_grad(strided.tensor, strided.flags);
      return std::move(strided.tensor);
    }
    case TensorKind::kSparse:
      return read_sparse(in);
    case TensorKind::kCompressed:
      return read_compressed(in);
    case TensorKind::kQuantizedPerTensor:
      return read_per_tensor(in);
    case TensorKind::kQuantizedPerChannel:
      return read_per_channel(in);
    default:
      throw BadFrame("the kind " + std::to_string(kind) + " of a tensor is unknown");
  }
}

TensorReader::Strided TensorReader::read_strided(Reader& in) const {
  const c10::ScalarType dtype = read_dtype(in);
  const uint8_t flags = read_flags(in);
  const size_t dimensions = read_dimensions(in);
  const auto index = in.get<uint32_t>();
  if (index >= storages_.size()) {
    throw BadFrame("a tensor names storage " + std::to_string(index) + " of " + std::to_string(storages_.size()));
  }
  const c10::Storage& storage = storages_[index];
  const int64_t offset = read_numbers(in, 1)[0];
  const std::vector<int64_t> sizes = read_numbers(in, dimensions);
  const std::vector<int64_t> strides = read_numbers(in, dimensions);
  const auto type = c10::scalarTypeToTypeMeta(dtype);
  check_extent(sizes, strides, offset, type.itemsize(), storage.nbytes());
  const auto key = c10::computeDispatchKey(at::kByte, at::kStrided, storage.device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (flags & (kConjugate | kNegative)) {
    if ((flags & kConjugate) && !tensor.is_complex()) {
      throw BadFrame("a tensor that is not complex is conjugated");
    }
    tensor._set_conj((flags & kConjugate) != 0);
    tensor._set_neg((flags & kNegative) != 0);
  }
  return {std::move(tensor), flags};
}

at::Tensor TensorReader::read_member(Reader& in) const {
  const at::Tensor tensor = read_strided(in).tensor;
  if (tensor.nbytes() > tensor.storage().nbytes()) {
    throw BadFrame("a member of a tensor has more elements than memory");
  }
  return tensor;
}

at::Tensor TensorReader::read_numbers_of(Reader& in) const {
  const at::Tensor tensor = read_member(in);
  // Torch checks the values but uses the memory, and the two must be the same.
  if (tensor.is_conj() || tensor.is_neg()) {
    throw BadFrame("the indices or scales of a tensor are a negative or conjugate view");
  }
  return tensor;
}

at::Tensor TensorReader::read_sparse(Reader& in) const {
  const uint8_t flags = read_flags(in);
  const std::vector<int64_t> sizes = read_numbers(in, read_dimensions(in));
  const at::Tensor indices = read_numbers_of(in);
  const at::Tensor values = read_member(in);
  at::Tensor tensor;
  try {
    const bool coalesced = (flags & kCoalesced) != 0;
    at::_validate_sparse_coo_tensor_args(indices, values, sizes, coalesced);
    tensor = at::sparse_coo_tensor(indices, values, sizes, values.options().layout(at::kSparse), coalesced);
  } catch (const c10::Error& error) {
    throw BadFrame(std::string("a sparse tensor is not valid: ") + error.what_without_backtrace());
  }
  set_requires_grad(tensor, flags);
  return tensor;
}

at::Tensor TensorReader::read_compressed(Reader& in) const {
  const uint8_t flags = read_flags(in);
  const auto layout = static_cast<at::Layout>(in.get<uint8_t>());
  if (!is_compressed(layout)) {
    throw BadFrame("a sparse tensor has an unknown layout");
  }
  const std::vector<int64_t> sizes = read_numbers(in, read_dimensions(in));
  const at::Tensor compressed = read_numbers_of(in);
  const at::Tensor plain = read_numbers_of(in);
  const at::Tensor values = read_member(in);
  at::Tensor tensor;
  try {
    at::_validate_sparse_compressed_tensor_args(compressed, plain, values, sizes, layout);
    tensor = at::_sparse_compressed_tensor_unsafe(compressed, plain, values, sizes, values.options().layout(layout));
  } catch (const c10::Error& error) {
    throw BadFrame(std::string("a sparse tensor is not valid: ") + error.what_without_backtrace());
  }
  set_requires_grad(tensor, flags);
  return tensor;
}

at::Tensor TensorReader::quantized(const Strided& strided, at::QuantizerPtr quantizer) const {
  const at::Tensor& plain = strided.tensor;
  const auto key = c10::computeDispatchKey(plain.scalar_type(), at::kStrided, plain.device());
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(c10::Storage(plain.storage()), c10::DispatchKeySet(key),
                                                         plain.dtype(), std::move(quantizer));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(plain.sizes(), plain.strides(), plain.storage_offset());
  return tensor;
}

at::Tensor TensorReader::read_per_tensor(Reader& in) const {
  const auto scale = in.get<double>();
  const auto zero_point = in.get<int64_t>();
  const Strided strided = read_strided(in);
  if (!c10::isQIntType(strided.tensor.scalar_type())) {
    throw BadFrame("a quantized tensor does not have a quantized dtype");
  }
  return quantized(strided, at::make_per_tensor_affine_quantizer(scale, zero_point, strided.tensor.scalar_type()));
}

at::Tensor TensorReader::read_per_channel(Reader& in) const {
  const auto axis = in.get<int64_t>();
  const Strided strided = read_strided(in);
  const at::Tensor scales = read_numbers_of(in);
  const at::Tensor zero_points = read_numbers_of(in);
  const at::Tensor& plain = strided.tensor;
  if (const std::string why = why_no_scales(plain, scales, zero_points, axis); !why.empty()) {
    throw BadFrame(why);
  }
  return quantized(strided, at::make_per_channel_affine_quantizer(scales, zero_points, axis, plain.scalar_type()));
}

}  // namespace rpc_backends
