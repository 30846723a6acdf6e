#include "kernels/cuda/blas.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

// A product of one shape: descriptors and the algorithm, created once.
struct Product {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  std::string name;  // of the shape
};

// Whether the product is added to something: to c, or to the separate matrix `add`.
bool Adds(const MatmulArgs& args) { return args.accumulate || args.add.wanted(); }

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, DType, bool>;
Key KeyOf(const MatmulArgs& args) {
  return {args.batch,       args.m,           args.n,       args.k,
          args.transpose_a, args.transpose_b, args.c.dtype, Adds(args)};
}

// The key of a shape in the file, e.g. "4096x1536x768-nt-bf16-add" or "768x768x768-nn-bf16-add-12",
// a batch of 12.
std::string NameOf(const MatmulArgs& args) {
  return absl::StrCat(args.m, "x", args.n, "x", args.k, "-", args.transpose_a ? "t" : "n",
                      args.transpose_b ? "t" : "n", args.c.dtype == DType::kF32 ? "-f32" : "-bf16",
                      Adds(args) ? "-add" : "",
                      args.batch > 1 ? absl::StrCat("-", args.batch) : "");
}

// Temporary device memory, filled with bf16 numbers between −1 and 1, because products of zeros run
// faster than products of real data.
class Scratch {
 public:
  ~Scratch() {
    for (void* block : blocks_) cudaFree(block);
  }
  absl::StatusOr<void*> Take(int64_t bytes) {
    void* block = nullptr;
    const cudaError_t error = cudaMalloc(&block, bytes);
    if (error != cudaSuccess) cudaGetLastError();  // clear it: out of memory is handled here
    NSA_RETURN_IF_ERROR(ToStatus(error, "matmul timing"));
    blocks_.push_back(block);
    std::vector<bf16> values(std::min<int64_t>(bytes / 2, 1 << 20));
    uint32_t state = 12345;
    for (bf16& value : values) {
      state = state * 1664525u + 1013904223u;
      value = bf16(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
    }
    const auto pattern = static_cast<int64_t>(values.size() * sizeof(bf16));
    for (int64_t at = 0; at < bytes; at += pattern) {
      NSA_RETURN_IF_ERROR(
          ToStatus(cudaMemcpy(static_cast<uint8_t*>(block) + at, values.data(),
                              std::min(pattern, bytes - at), cudaMemcpyHostToDevice),
                   "matmul timing"));
    }
    NSA_RETURN_IF_ERROR(Synchronize(nullptr));  // the last copy may still be running
    return block;
  }

 private:
  std::vector<void*> blocks_;
};

bool IsCapturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

class Blas::Impl {
 public:
  Impl(CublasLt library, void* workspace, int64_t workspace_bytes)
      : library_(std::move(library)), workspace_(workspace), workspace_bytes_(workspace_bytes) {}

  ~Impl() {
    for (auto& [key, product] : products_) Destroy(product);
    if (handle_ != nullptr) library_.destroy(handle_);
  }

  absl::Status Open(const std::string& algorithm_folder) {
    NSA_RETURN_IF_ERROR(ToStatus(library_.create(&handle_), "create"));
    const size_t version = library_.version();
    int device = 0;
    cudaDeviceProp properties{};
    NSA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "device"));
    NSA_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "device"));
    file_ = std::make_unique<AlgorithmFile>(algorithm_folder, properties.name, version);
    const std::string name =
        absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
    library_name = absl::StrCat(properties.name, ", ", name);
    description = absl::StrCat(name, " (", library_.path, ")");
    if (!file_->path().empty()) absl::StrAppend(&description, ", algorithms in ", file_->path());
    return absl::OkStatus();
  }

  absl::StatusOr<const Product*> Find(void* stream, const MatmulArgs& args) {
    const Key key = KeyOf(args);
    if (const auto found = products_.find(key); found != products_.end()) return &found->second;
    Product product{.name = NameOf(args)};
    absl::Status status = Describe(args, &product);
    if (status.ok()) status = Choose(stream, args, &product);
    if (!status.ok()) {
      Destroy(product);
      return status;
    }
    return &products_.emplace(key, product).first->second;
  }

  absl::Status Run(void* stream, const Product& product, const MatmulArgs& args) const {
    const float beta = Adds(args) ? args.beta : 0.0f;
    const void* add = args.add.wanted() ? args.add.data : args.c.data;
    // cuBLASLt is column-major, so it computes cᵀ = op(b)ᵀ·op(a)ᵀ: b comes first.
    return ToStatus(library_.matmul(handle_, product.product, &args.alpha, args.b.data, product.b,
                                    args.a.data, product.a, &beta, add, product.c, args.c.data,
                                    product.c, &product.algorithm, workspace_, workspace_bytes_,
                                    static_cast<cudaStream_t>(stream)),
                    "matmul");
  }

  std::map<std::string, Algorithm> Algorithms() const {
    std::map<std::string, Algorithm> algorithms;
    for (const auto& [key, product] : products_) {
      std::memcpy(algorithms[product.name].data(), &product.algorithm, sizeof(product.algorithm));
    }
    return algorithms;
  }

  void Adopt(const std::map<std::string, Algorithm>& algorithms) {
    for (const auto& [shape, algorithm] : algorithms) adopted_[shape] = algorithm;
    for (auto& [key, product] : products_) UseAdopted(&product);
  }

  std::string library_name;  // see Blas::library()
  std::string description;
  int64_t untimed_shapes = 0;

 private:
  void Destroy(const Product& product) const {
    if (product.product != nullptr) library_.desc_destroy(product.product);
    for (cublasLtMatrixLayout_t layout : {product.a, product.b, product.c}) {
      if (layout != nullptr) library_.layout_destroy(layout);
    }
  }

  absl::Status Describe(const MatmulArgs& args, Product* product) const {
    NSA_RETURN_IF_ERROR(ToStatus(
        library_.desc_create(&product->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor"));
    const cublasOperation_t op_first = args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_second = args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    NSA_RETURN_IF_ERROR(ToStatus(library_.desc_set(product->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &op_first, sizeof(op_first)),
                                 "descriptor"));
    NSA_RETURN_IF_ERROR(ToStatus(library_.desc_set(product->product, CUBLASLT_MATMUL_DESC_TRANSB,
                                                   &op_second, sizeof(op_second)),
                                 "descriptor"));
    const cudaDataType_t result = args.c.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    // Layouts are (rows, columns, leading dimension) of the column-major view: the stored row
    // length comes first.
    auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t stored_rows,
                      int64_t stored_columns) -> absl::Status {
      NSA_RETURN_IF_ERROR(ToStatus(
          library_.layout_create(to, type, stored_columns, stored_rows, stored_columns), "layout"));
      const auto batch = static_cast<int32_t>(args.batch);
      const int64_t stride = stored_rows * stored_columns;
      NSA_RETURN_IF_ERROR(ToStatus(
          library_.layout_set(*to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch)),
          "layout"));
      return ToStatus(library_.layout_set(*to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                          sizeof(stride)),
                      "layout");
    };
    NSA_RETURN_IF_ERROR(args.transpose_b ? layout(&product->b, CUDA_R_16BF, args.n, args.k)
                                         : layout(&product->b, CUDA_R_16BF, args.k, args.n));
    NSA_RETURN_IF_ERROR(args.transpose_a ? layout(&product->a, CUDA_R_16BF, args.k, args.m)
                                         : layout(&product->a, CUDA_R_16BF, args.m, args.k));
    return layout(&product->c, result, args.m, args.n);
  }

  // The library's candidates, its first choice first.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(const MatmulArgs& args,
                                                               const Product& product) const {
    constexpr int kMost = 16;
    cublasLtMatmulPreference_t preference = nullptr;
    NSA_RETURN_IF_ERROR(ToStatus(library_.preference_create(&preference), "preference"));
    const size_t bytes = workspace_bytes_;
    // Excludes in-place split-K, which adds in the order in which blocks finish; the other schemes
    // add in a fixed order.
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE |
                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                             CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    library_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                            sizeof(bytes));
    library_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                            sizeof(schemes));
    // bf16 weights begin at multiples of 32 bytes, everything else at larger ones. Without this
    // setting, algorithms may rely on an alignment of 256.
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      constexpr uint32_t kAlignment = 32;
      library_.preference_set(preference, attribute, &kAlignment, sizeof(kAlignment));
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(kMost);
    int found = 0;
    const cublasStatus_t status =
        library_.heuristic(handle_, product.product, product.b, product.a, product.c, product.c,
                           preference, kMost, results.data(), &found);
    library_.preference_destroy(preference);
    NSA_RETURN_IF_ERROR(ToStatus(status, "algorithm"));
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    }
    if (!algorithms.empty()) return algorithms;
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt: no algorithm for m=", args.m, " n=", args.n, " k=", args.k,
                     " (sizes must be multiples of 8); change the model's widths"));
  }

  // Uses this algorithm for the product, if this library and GPU accept it.
  bool Use(const Algorithm& words, Product* product) const {
    cublasLtMatmulAlgo_t algorithm{};
    static_assert(sizeof(words) == sizeof(algorithm));
    std::memcpy(&algorithm, words.data(), sizeof(algorithm));
    cublasLtMatmulHeuristicResult_t result{};
    if (library_.check(handle_, product->product, product->b, product->a, product->c, product->c,
                       &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > static_cast<size_t>(workspace_bytes_)) {
      return false;
    }
    product->algorithm = algorithm;
    return true;
  }

  bool UseAdopted(Product* product) const {
    const auto found = adopted_.find(product->name);
    return found != adopted_.end() && Use(found->second, product);
  }

  // The algorithm that the file has for this shape.
  bool Remembered(Product* product) const {
    const auto words = file_->Find(product->name);
    return words.has_value() && Use(*words, product);
  }

  absl::Status Choose(void* stream, const MatmulArgs& args, Product* product) {
    if (UseAdopted(product) || Remembered(product)) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(const auto candidates, Candidates(args, *product));
    product->algorithm = candidates.front();
    if (candidates.size() == 1) return absl::OkStatus();
    if (IsCapturing(stream) || !file_->Lock().ok()) {
      ++untimed_shapes;
      return absl::OkStatus();
    }
    // Another rank may have chosen while this one waited for the lock.
    absl::Status status;
    if (!Remembered(product)) {
      product->algorithm = candidates.front();
      status = Fastest(stream, args, candidates, product);
      if (absl::IsResourceExhausted(status)) {
        ++untimed_shapes;
        product->algorithm = candidates.front();
        status = absl::OkStatus();
      } else if (status.ok()) {
        Algorithm words{};
        std::memcpy(words.data(), &product->algorithm, sizeof(product->algorithm));
        if (!file_->Add(product->name, words).ok()) {
          ++untimed_shapes;
          product->algorithm = candidates.front();
        }
      }
    }
    file_->Unlock();
    return status;
  }

  // Leaves the fastest candidate in `product`. A later candidate replaces an earlier one only if it
  // is more than 2 % faster: where timing cannot tell them apart, the library's order decides.
  absl::Status Fastest(void* stream, const MatmulArgs& args,
                       const std::vector<cublasLtMatmulAlgo_t>& candidates, Product* product) {
    Scratch scratch;
    MatmulArgs timed = args;
    NSA_ASSIGN_OR_RETURN(timed.a.data, scratch.Take(2 * args.batch * args.m * args.k));
    NSA_ASSIGN_OR_RETURN(timed.b.data, scratch.Take(2 * args.batch * args.k * args.n));
    NSA_ASSIGN_OR_RETURN(timed.c.data,
                         scratch.Take(SizeOf(args.c.dtype) * args.batch * args.m * args.n));
    timed.accumulate = Adds(args), timed.add = {}, timed.beta = 1;
    float best = 0;
    cublasLtMatmulAlgo_t fastest = candidates.front();
    for (const cublasLtMatmulAlgo_t& candidate : candidates) {
      product->algorithm = candidate;
      NSA_ASSIGN_OR_RETURN(const float time, TimeOf(stream, *product, timed));
      if (best != 0 && time > best * 0.98f) continue;
      best = time;
      fastest = candidate;
    }
    product->algorithm = fastest;
    return absl::OkStatus();
  }

  // Milliseconds of one call, the minimum of three samples.
  absl::StatusOr<float> TimeOf(void* stream_pointer, const Product& product,
                               const MatmulArgs& args) const {
    constexpr int kSamples = 3, kCalls = 4;
    auto* stream = static_cast<cudaStream_t>(stream_pointer);
    cudaEvent_t begin = nullptr, end = nullptr;
    NSA_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&begin), "event"));
    NSA_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&end), "event"));
    absl::Status status = Run(stream, product, args);
    float least = 0;
    for (int sample = 0; sample < kSamples && status.ok(); ++sample) {
      cudaEventRecord(begin, stream);
      for (int call = 0; call < kCalls; ++call) status.Update(Run(stream, product, args));
      cudaEventRecord(end, stream);
      status.Update(ToStatus(cudaEventSynchronize(end), "matmul timing"));
      float time = 0;
      cudaEventElapsedTime(&time, begin, end);
      least = sample == 0 ? time : std::min(least, time);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    NSA_RETURN_IF_ERROR(status);
    return least / kCalls;
  }

  CublasLt library_;
  cublasLtHandle_t handle_ = nullptr;
  void* const workspace_;
  const int64_t workspace_bytes_;
  std::unique_ptr<AlgorithmFile> file_;
  std::map<Key, Product> products_;
  std::map<std::string, Algorithm> adopted_;
};

absl::StatusOr<std::unique_ptr<Blas>> Blas::Create(void* workspace, int64_t workspace_bytes,
                                                   const std::string& algorithm_folder) {
  NSA_ASSIGN_OR_RETURN(CublasLt library, CublasLt::Load());
  auto impl = std::make_unique<Impl>(std::move(library), workspace, workspace_bytes);
  NSA_RETURN_IF_ERROR(impl->Open(algorithm_folder));
  return std::unique_ptr<Blas>(new Blas(std::move(impl)));
}

Blas::Blas(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Blas::~Blas() = default;

absl::Status Blas::Plan(void* stream, std::span<const MatmulArgs> products) {
  for (const MatmulArgs& args : products) {
    NSA_RETURN_IF_ERROR(impl_->Find(stream, args).status());
  }
  return absl::OkStatus();
}

absl::Status Blas::Matmul(void* stream, const MatmulArgs& args) {
  NSA_ASSIGN_OR_RETURN(const Product* product, impl_->Find(stream, args));
  return impl_->Run(stream, *product, args);
}

std::map<std::string, Algorithm> Blas::Algorithms() const { return impl_->Algorithms(); }
void Blas::Adopt(const std::map<std::string, Algorithm>& algorithms) { impl_->Adopt(algorithms); }
const std::string& Blas::library() const { return impl_->library_name; }

int64_t Blas::untimed_shapes() const { return impl_->untimed_shapes; }

const std::string& Blas::description() const { return impl_->description; }

}  // namespace nsa::cuda
