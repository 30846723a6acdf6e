// Matrix products, single or in batches of one shape, with cuBLASLt. The library is loaded at run
// time, because at 500 MB it is too large to ship with this program.
//
// Row-major in, row-major out; bf16 operands, fp32 accumulation, bf16 or fp32 result. Only
// algorithms whose split-K sums have a fixed order are used. The algorithm of a shape is chosen
// once, by timing the library's candidates, and kept on disk (algorithm_file.h): the same shape
// gives the same bits in every run on one GPU model and library version. Where the choice cannot be
// stored, the library's first choice is used, which is equally stable.
//
// One object per device; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/algorithm_file.h"
#include "kernels/matmul_args.h"

namespace nsa::cuda {

class Blas {
 public:
  // Loads the library (libcublasLt.so.13, .12 or unversioned, from the loader's path and the usual
  // CUDA folders) and makes a handle on the current device. `workspace` is device memory for the
  // library, at least 32 MiB. `algorithm_folder` is where choices are kept, e.g.
  // DefaultAlgorithmFolder(); empty: nothing is timed. NotFound lists the names that were tried and
  // says what to do.
  static absl::StatusOr<std::unique_ptr<Blas>> Create(void* workspace, int64_t workspace_bytes,
                                                      const std::string& algorithm_folder = "");
  ~Blas();

  // Chooses the algorithms of products before they are needed. Of the tensors only the types are
  // read, not data or sizes. For a shape that is not known yet it times the candidates: it
  // temporarily allocates memory of the product's size and waits for the GPU, so call it before the
  // arena is allocated and before a CUDA graph is captured.
  absl::Status Plan(void* stream, std::span<const MatmulArgs> products);

  // c = op(a)·op(b) (+ c or `add`). Enqueues on `stream` (a cudaStream_t); no allocation, no
  // synchronisation. A shape that was not planned is planned here, unless the stream is being
  // captured: then the choice on disk is used, or the library's first choice (untimed_shapes()).
  absl::Status Matmul(void* stream, const MatmulArgs& args);

  // The algorithm of every shape so far, by the shape's name (algorithm_file.h): what a checkpoint
  // records, so that a run that continues from it elsewhere gives the same bits.
  std::map<std::string, Algorithm> Algorithms() const;
  // Uses these algorithms from now on, also for shapes that are new later, and those of earlier
  // calls for shapes that these do not have. A shape for which this library refuses its algorithm
  // keeps the one that it has: Algorithms() tells. Not while a CUDA graph that contains products is
  // kept.
  void Adopt(const std::map<std::string, Algorithm>& algorithms);

  // What algorithms belong to: "NVIDIA H200, cuBLASLt 13.0.2".
  const std::string& library() const;

  // Number of shapes that use the library's first choice because they could not be timed: they were
  // not planned before a capture, memory was short, or the choice could not be stored.
  int64_t untimed_shapes() const;

  // For env.json: "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13), algorithms in
  // /…/x.txt".
  const std::string& description() const;

 private:
  class Impl;
  explicit Blas(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::cuda
