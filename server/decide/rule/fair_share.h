// The order of the queue by fair shares (scheduling.fair_share_label). Pure.
//
// Of jobs with equal priority, those come first whose value of the label has the fewest ranks on
// slots of the same kind (GPU, CPU); with equal numbers, the one that was queued first. Jobs with
// the same value keep the order in which they were queued. A job counts as placed for those after
// it, also if it has to wait: so the order is the one in which the jobs would start if slots came
// free one after the other. A job that no machine could run counts for nobody.
//
// Guarantee: a job whose value has no rank placed is not overtaken by any job of the same priority
// that was queued later, except by one to which others give way already. So the first job of each
// value starts at the latest when the ranks that its value has now have ended and those before it
// in the queue have started.
#pragma once

#include <functional>
#include <vector>

#include "server/decide/scheduler.h"

namespace nsa::server {

// `queue` is sorted by priority, then by time; `counts` are the ranks that are placed at present.
// `fits` returns whether a job would fit if nothing else ran.
void SortByShare(Shares counts, const std::function<bool(const QueuedJob&)>& fits,
                 std::vector<const QueuedJob*>* queue);

}  // namespace nsa::server
