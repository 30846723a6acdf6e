// Stored jobs and machines as the scheduler sees them (scheduler.h).
#include <algorithm>
#include <functional>
#include <set>

#include "common/estimate/fewer_ranks.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/lifecycle.h"
#include "server/decide/scheduler.h"

namespace nsa::server {

HeldSlots SlotsHeld(const std::vector<std::shared_ptr<const v1::StoredJob>>& active) {
  HeldSlots held;
  for (const auto& job : active) {
    if (!HoldsSlots(job->job().state())) continue;
    for (const v1::RankPlacement& place : job->placements()) held[place.node()].push_back(&place);
  }
  return held;
}

NodeSlots FreeSlots(const v1::NodeInfo& info, const HeldSlots& held) {
  NodeSlots slots{.name = info.name(),
                  .cpu_free = info.cpu_slots(),
                  .cpu_total = info.cpu_slots(),
                  .has_rank_address = !info.rank_address().empty(),
                  .unix_users = info.unix_users(),
                  .makeup = MakeupOf(info, std::nullopt),
                  .attributes = AttributesOf(info)};
  std::set<std::string> taken;
  if (const auto here = held.find(info.name()); here != held.end()) {
    for (const v1::RankPlacement* place : here->second) {
      if (place->cuda_device().empty()) {
        --slots.cpu_free;
      } else {
        taken.insert(place->cuda_device());
      }
    }
  }
  if (!info.cuda_worker()) return slots;
  std::vector<const v1::GpuInfo*> free;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty()) continue;
    ++slots.gpus_total;
    if (taken.contains(gpu.uuid())) {
      slots.gpus_held.push_back(gpu.uuid());
    } else {
      free.push_back(&gpu);
    }
  }
  std::ranges::stable_sort(free, std::greater<>(),
                           [](const v1::GpuInfo* gpu) { return gpu->free_bytes() >> 30; });
  for (const v1::GpuInfo* gpu : free) slots.gpus_free.push_back(gpu->uuid());
  return slots;
}

QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu) {
  const v1::JobSpec& spec = job.job().spec();
  const v1::Device device = spec.runtime().device();
  const bool cuda = device == v1::DEVICE_CUDA || (device != v1::DEVICE_CPU && any_gpu);
  return {.id = job.job().id(),
          .priority = spec.priority(),
          .order = job.queued_unix_nanos(),
          .ranks = std::max(spec.resources().gpus(), 1),
          .nodes = std::max(spec.resources().nodes(), 1),
          .fewer = FewerRanks(spec),
          .cuda = cuda,
          .has_unix_user = !job.job().unix_user().empty(),
          .name = job.job().name(),
          .owner = job.job().owner(),
          .demand = DemandOf(spec, cuda),
          .required = RequirementsOf(spec)};
}

}  // namespace nsa::server
