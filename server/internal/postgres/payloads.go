package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/task"
)

// What a payload is to its step.
const (
	roleInput      = "INPUT"
	roleOutput     = "OUTPUT"
	roleCheckpoint = "CHECKPOINT"
)

func addPayload(p *dbsqlc.PutPayloadsParams, step uuid.UUID, role string, payload *task.Payload) {
	body := payload.Body
	if body == nil {
		body = []byte{} // nil would be NULL
	}
	p.StepIds = append(p.StepIds, step)
	p.Roles = append(p.Roles, role)
	p.IsJson = append(p.IsJson, payload.JSON)
	p.ContentTypes = append(p.ContentTypes, payload.ContentType)
	p.Bodies = append(p.Bodies, body)
}

type payloadKey struct {
	step uuid.UUID
	role string
}

func readPayloads(ctx context.Context, q *dbsqlc.Queries, steps []uuid.UUID, roles ...string) (map[payloadKey]*task.Payload, error) {
	found := map[payloadKey]*task.Payload{}
	if len(steps) == 0 {
		return found, nil
	}
	rows, err := q.Payloads(ctx, dbsqlc.PayloadsParams{StepIds: steps, Roles: roles})
	if err != nil {
		return nil, fmt.Errorf("read payloads: %w", err)
	}
	for _, r := range rows {
		found[payloadKey{r.StepID, r.Role}] = &task.Payload{JSON: r.IsJson, Body: r.Body, ContentType: r.ContentType}
	}
	return found, nil
}
