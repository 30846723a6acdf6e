#include "server/store/gpu_time_table.h"

#include "common/base/status.h"

namespace nsa::server {

absl::Status GpuTimeTable::Load() {
  NSA_ASSIGN_OR_RETURN(Statement rows,
                       database_.Prepare("SELECT owner, hour, milliseconds FROM gpu_time"));
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    by_owner_[rows.Text(0)][rows.Int(1)] = rows.Int(2);
  }
}

absl::Status GpuTimeTable::Write(const std::string& owner, const GpuHours& more) {
  if (more.empty()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(
      Statement row,
      database_.Prepare(
          "INSERT INTO gpu_time(owner, hour, milliseconds) VALUES(?, ?, ?) ON CONFLICT(owner, "
          "hour) DO UPDATE SET milliseconds = milliseconds + excluded.milliseconds"));
  for (const auto& [hour, milliseconds] : more) {
    NSA_RETURN_IF_ERROR(row.Bind(1, owner).Bind(2, hour).Bind(3, milliseconds).Run());
  }
  return absl::OkStatus();
}

void GpuTimeTable::Remember(const std::string& owner, const GpuHours& more) {
  if (!more.empty()) AddHours(more, &by_owner_[owner]);
}

absl::Status GpuTimeTable::Forget(absl::Time now) {
  const int64_t oldest = OldestGpuHour(now);
  NSA_ASSIGN_OR_RETURN(Statement row, database_.Prepare("DELETE FROM gpu_time WHERE hour < ?"));
  NSA_RETURN_IF_ERROR(row.Bind(1, oldest).Run());
  for (auto& [owner, hours] : by_owner_) hours.erase(hours.begin(), hours.lower_bound(oldest));
  std::erase_if(by_owner_, [](const auto& entry) { return entry.second.empty(); });
  return absl::OkStatus();
}

GpuHours GpuTimeTable::Of(const std::string& owner) const {
  const auto found = by_owner_.find(owner);
  return found == by_owner_.end() ? GpuHours() : found->second;
}

std::vector<std::string> GpuTimeTable::Owners() const {
  std::vector<std::string> owners;
  owners.reserve(by_owner_.size());
  for (const auto& [owner, hours] : by_owner_) owners.push_back(owner);
  return owners;
}

}  // namespace nsa::server
