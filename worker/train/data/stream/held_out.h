// Validation documents of a stream with data.val_fraction.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/prepared/held_shards.h"
#include "worker/train/data/stream/plan.h"

namespace nsa::train {

// Files are looked through for validation documents until this many bytes of documents have passed,
// of each source.
constexpr int64_t kMostLookedThrough = int64_t{1} << 30;

// What the validation of a job takes; nothing without validation.
HeldOutNeed HeldOutNeedOf(const v1::TrainSpec& train);

// Appends held-out documents, held in `held`, to the validation tokens of corpus->parts, one for
// each source of the plan: the first ones that a look through the files of the source, in the order
// in which they are listed, finds, until there are enough for need.rows rows, of a mixture for the
// source's share of them. So they are the same for every seed and number of ranks. InvalidArgument
// if there are fewer tokens than a row has. Errors: those of DocumentReader and DocumentEncoder.
absl::Status FindHeldOut(const StreamPlan& plan, const HeldOutNeed& need, ReadProgress* progress,
                         HeldShards* held, Corpus* corpus);

}  // namespace nsa::train
