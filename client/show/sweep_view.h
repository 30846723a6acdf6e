// The jobs of a sweep as a table, best first. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/table.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::client {

// The order of `nsactl sweep`: jobs that the sweep still counts before those that were dropped or
// failed; then by the step of the latest validation if the sweep is halved, the later first; then
// by its loss; then by index. Jobs without a validation come last in their group.
void SortSweep(std::vector<v1::Job>* jobs);

// One row for each job: the fields that were swept (from the labels) and how far it is.
Table SweepTable(const std::vector<v1::Job>& jobs);

// "best: lr-3 (train.lr=3e-4): validation loss 1.8320 at step 400"; without a validation what the
// jobs do. The jobs are sorted.
std::string SweepSummary(const std::vector<v1::Job>& jobs);

}  // namespace nsa::client
