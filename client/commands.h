// Every command of nsactl, a file each.
#pragma once

#include "client/cli.h"

namespace nsa {

void AddSubmit(Cli* cli);
void AddValidate(Cli* cli);
void AddList(Cli* cli);
void AddDescribe(Cli* cli);
void AddWatch(Cli* cli);
void AddLogs(Cli* cli);
void AddEvents(Cli* cli);
void AddMetrics(Cli* cli);
void AddStop(Cli* cli);
void AddResume(Cli* cli);
void AddDelete(Cli* cli);
void AddDumpStack(Cli* cli);
void AddCheckpoint(Cli* cli);
void AddNodes(Cli* cli);
void AddVersion(Cli* cli);
void AddContext(Cli* cli);
void AddCompletion(Cli* cli);

}  // namespace nsa
