// The alerts of a job file (AlertSpec): when one is raised and when it is cleared. Pure.
//
// An alert is judged by the records of rank 0 of the job's present start, in their order. Time is
// the sum of the steps and validations, as the worker measured them: a pause, a restart and a step
// of a clock do not count, and the same records always give the same result. A quantity keeps its
// newest value until there is another one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// After an alert was raised it is raised again after this time at the earliest, so that a noisy
// quantity without `for` cannot flood its receivers.
inline constexpr double kAlertRestSeconds = 60;

// Folds a record into progress.alerts, which become those of `spec`. Returns an event for each
// alert that is raised or cleared with it. `gpus`, as their agents last measured them.
std::vector<v1::JobEvent> FoldAlerts(const v1::WorkerRecord& record,
                                     std::span<const v1::GpuInfo> gpus, const v1::JobSpec& spec,
                                     v1::JobProgress* progress);

// The problem that an alert is while it is raised: "ALERT_1" for the first one.
std::string AlertWord(int index);

// Its place in spec.alerts; -1 for another word.
int AlertIndex(std::string_view word);

// "val_loss > 3 for 10m: now 3.21".
std::string AlertText(const v1::AlertProgress& alert);

}  // namespace nsa::server
