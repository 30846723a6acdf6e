// Shows the GPU's progress on the status page. The host enqueues a whole step at once, so the
// device itself reports its progress: marks write a number to memory that the host can read. What a
// number stands for (phase, micro-batch, layer, kernel) is recorded when the mark is enqueued or
// captured into a graph. Marks that begin a phase also record the time.
//
// The first kernels of phases and layers are marked, and kernels that run long or whose time
// depends on the data. A kernel of ours writes its mark itself when it begins
// (kernels/cuda/mark.h). Phases and matrix products have marks that are kernels of their own. Where
// branches of the attention run side by side, the page names the one that began last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run/status_page.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mark.h"
#include "kernels/exec.h"

namespace nsa::train {

class GpuProgress {
 public:
  // `page` outlives this. With `every_kernel` each kernel is marked and timed, which makes a step a
  // few percent longer.
  static absl::StatusOr<std::unique_ptr<GpuProgress>> Create(StatusPage* page, bool every_kernel,
                                                             int32_t micro_batches);

  // How many marks can record a time. That is enough for a step in a graph and one outside it; a
  // step has a mark for each forward and each backward, and three after them. With `every_kernel`
  // the number is at least 16,384; in a longer step the later marks record no time.
  static int32_t Stamps(int32_t micro_batches, bool every_kernel);

  // Returns `exec` with marks added to its kernels. Valid as long as this object.
  Exec Watch(const Exec& exec);

  // To be called before kernels are enqueued: forgets the marks that no graph holds.
  void Begin();
  // Keeps the marks since Begin(), because the kernels were captured into a graph.
  void Keep();
  // Forgets the marks that Keep() kept, because their graph is no longer used.
  void Drop();

  void EnterPhase(Phase phase, int32_t micro_batch);
  void EnterLayer(int32_t layer);

  // Seconds that a phase took in the step that has just ended: from its mark to the next phase's.
  // `in_graph`: the step ran as a graph.
  double Seconds(Phase phase, bool in_graph) const;

  // With `every_kernel`: the time of each kernel family in that step, from a kernel's mark to the
  // next kernel's. Keys are phase and name, e.g. "backward matmul".
  struct KernelTime {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, KernelTime> KernelTimes(bool in_graph) const;

  // Whether the stream has finished everything; updates the status page. Returns the error of a
  // mark or of any kernel.
  absl::StatusOr<bool> Poll();

  // Polls until the stream has finished: every 50 µs, which are about 105 with Linux's timer slack,
  // and without a pause where NearEnd() says so.
  absl::Status Wait();

  // Whether a wait is about to end if it takes as long as the one before: from 3 %, or 0.5 ms if
  // that is less, before until as much after that. Pure.
  static bool NearEnd(absl::Duration waited, absl::Duration one_before);

  // Address that the spinning test kernel waits on. It is never set, so the kernel never ends.
  const int32_t* never() const;

 private:
  struct Mark {
    Phase phase = Phase::kStarting;
    int32_t micro_batch = 0;
    int32_t layer = -1;
    const char* kernel = "";
    int32_t stamp = -1;  // index of its recorded time; −1: none
    bool begins_phase = false;
  };

  GpuProgress(StatusPage* page, bool every_kernel, int32_t max_stamps)
      : page_(page), every_kernel_(every_kernel), max_stamps_(max_stamps) {}
  void EnterKernel(const char* name);
  void Add(const char* kernel, bool begins_phase);
  void Launch(const cuda::PendingMark& mark);
  void Show();
  int32_t* word() const;
  int64_t* stamps() const;

  StatusPage* const page_;
  const bool every_kernel_;
  const int32_t max_stamps_;
  Exec exec_;
  cuda::PendingMark pending_;  // for the next kernel
  cuda::PinnedMemory memory_;
  std::vector<Mark> marks_;
  size_t kept_ = 0;
  int32_t stamps_used_ = 0;
  int32_t stamps_kept_ = 0;
  Mark current_;
  int32_t shown_ = -1;
  absl::Status error_;
  absl::Duration last_wait_;
};

}  // namespace nsa::train
