// The table of how long ranks ran on GPUs, by owner and hour: at most kLongestGpuWindow and an hour
// of each owner. It belongs to JobStore, which serialises its use.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/decide/rule/gpu_time.h"
#include "server/store/sqlite.h"

namespace nsa::server {

class GpuTimeTable {
 public:
  // Added to version 1 of the store later; a coordinator without it leaves it alone.
  static constexpr char kSchema[] =
      "CREATE TABLE IF NOT EXISTS gpu_time(owner TEXT NOT NULL, hour INTEGER NOT NULL, "
      "milliseconds INTEGER NOT NULL, PRIMARY KEY(owner, hour)) WITHOUT ROWID";

  explicit GpuTimeTable(Database& database) : database_(database) {}

  absl::Status Load();

  // Within a transaction of the caller's; Remember() follows once that is committed.
  absl::Status Write(const std::string& owner, const GpuHours& more);
  void Remember(const std::string& owner, const GpuHours& more);

  // Removes what no window at `now` reaches.
  absl::Status Forget(absl::Time now);

  GpuHours Of(const std::string& owner) const;
  std::vector<std::string> Owners() const;

 private:
  Database& database_;
  std::map<std::string, GpuHours> by_owner_;
};

}  // namespace nsa::server
