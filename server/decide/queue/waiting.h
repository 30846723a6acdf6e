// Why a queued job waits, human-readable. Internal to the scheduler. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/decide/queue/fit.h"
#include "server/decide/scheduler.h"

namespace nsa::server {

// The reasons of one round. The reason of a job that does not fit is remembered by kind, because
// finding it out compares all machines. `nodes` is borrowed and may change its free slots only.
class Reasons {
 public:
  explicit Reasons(const std::vector<NodeSlots>& nodes) : nodes_(nodes) {}

  // The job could not run even on empty machines.
  Waiting Unplaceable(const QueuedJob& job);
  // The job would fit if no machine were cordoned.
  Waiting ForCordons(const QueuedJob& job);
  // The job waits for busy slots. `giving_way`: GivingWayText().
  Waiting ForSlots(const QueuedJob& job, const std::string& giving_way) const;
  // A job before it waits for busy slots. Only its owner sees its name; others see
  // its priority.
  static Waiting Behind(const QueuedJob& job, const QueuedJob& ahead);

 private:
  Waiting WhyNever(const QueuedJob& job) const;
  Waiting WhyCordoned(const QueuedJob& job) const;

  const std::vector<NodeSlots>& nodes_;
  std::map<Kind, Waiting> never_;
  std::map<Kind, Waiting> cordoned_;
};

// "2 jobs give way to it"; empty if none does.
std::string GivingWayText(const QueuedJob& job, const std::vector<RunningJob>& running);

// Why a job is not placed whose allocation is not complete. `ready`: its machines that are.
// `silence`: why its cluster manager cannot be asked at present, empty if it answers.
std::string AllocationText(const v1::Job& job, int ready, const std::string& silence);

}  // namespace nsa::server
