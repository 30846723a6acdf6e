// Where a start begins, by restart.resume. Preflight, the worker and everything else that must know
// before the ranks choose ask here, so that a check and the start agree.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

enum class ResumeFrom : uint8_t {
  kOwn,    // at the newest good checkpoint of out_dir; without one, afresh
  kNamed,  // at the checkpoint that restart.resume names
  kNever,  // afresh, and out_dir must have no checkpoints
};

// Whether restart.resume names a checkpoint or an out_dir.
bool NamesCheckpoint(const v1::RestartSpec& restart);

// `restarted`: ranks of the job have run before (generation 2 and later). Such a job continues from
// its own checkpoints if it has any, whatever restart.resume is.
ResumeFrom ResumeFromOf(const v1::RestartSpec& restart, bool restarted, bool has_own_checkpoints);

}  // namespace nsa
