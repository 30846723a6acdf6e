// Progress that the GPU reports to the host: a kernel writes a number to pinned host memory when it
// begins, that is when everything that was enqueued before it on its stream is done. So a mark
// needs no kernel of its own.
//
//   *exec.mark = {.word = word, .value = 7};   the next kernel of `exec` will write 7 to *word
//   Launch(exec, …)                            takes the mark (kernels/cuda/launch.h)
//
// The matrix products and the collectives are kernels of other libraries, which take no mark; in
// front of them Mark() (kernels/optimizer/step.h) launches a kernel that does nothing else. Not
// thread-safe: one thread enqueues.
#pragma once

#include <cstdint>

namespace nsa::cuda {

struct PendingMark {
  int32_t* word = nullptr;   // pinned host memory; null: no mark
  int64_t* nanos = nullptr;  // gets the GPU's clock in nanoseconds; may be null
  int32_t value = 0;
};

}  // namespace nsa::cuda
