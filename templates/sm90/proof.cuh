// What a proof of a wgmma kernel asks of C++ CuTe, in addition to the kernel's Config.

#pragma once

#include "promoted.cuh"

#include <cute/atom/mma_traits_sm90_gmma.hpp>

#include "../common/proof.cuh"
