// train.out_dir with {name} and {n}: out/{name}-{n} is a new folder for each submit.
#pragma once

#include <functional>
#include <string>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether `out_dir` has {name} or {n} in it.
bool HasOutDirNumber(const std::string& out_dir);

// Puts the job's name in the place of {name} in its train.out_dir, and in the place of {n} the
// smallest number from 1 on with which the folder is not `taken`. The coordinator does it at a
// submit, nsa-worker when it is started by hand, and `nsactl validate --offline`. Other folders
// stay as they are.
void FillOutDir(const std::function<bool(const std::string& out_dir)>& taken, v1::JobSpec* spec);

// FillOutDir() where a folder is taken if it is there.
void FillOutDirHere(v1::JobSpec* spec);

}  // namespace nsa
